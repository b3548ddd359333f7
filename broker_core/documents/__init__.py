"""The documents: what crosses from one process to another as JSON, one typed struct each, in one place.

    requests    what may be asked of a running broker, each with what it is answered
    clients     clients and their subscriptions, as a broker sees them now
    instance    a broker as a whole, and the snapshot of a second
    group       the group that a broker is a member of, as it sees it
    links       links to other sites
    problems    problems of a group and of links, while they last
    stalls      stalls of a broker's event loop, and their causes
    records     what a broker journals about its clients: events, decisions, losses
    replays     managed replays, and durable subscriptions
    journals    segments, and what archiving, compressing and removing would take
    messages    messages of topics, for whoever browses them
    traffic     what a second was like for clients that something waited for, packed
    policies    whom a policy touches
    jobs        what the pipeline's jobs may be asked, and within which bounds
    base        what they are all made of
    columns     the columns of the clients' table, for the API, CSV and the page

The broker builds them, the control plane decodes into them, the API's schema and the page's fields are made of them. They
know names, errors and bookmarks, and nothing of the broker. Sizes are bytes and moments ms UTC unless a name or a
description says otherwise; counts are messages.
"""

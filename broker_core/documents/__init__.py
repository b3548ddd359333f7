"""The documents: what crosses from one process to another as JSON, one typed struct each, in one place.

    requests        requests to a running broker, each with its answer
    clients         clients and their subscriptions, as a broker sees them now
    instance        a broker as a whole, the snapshot of a second, and clients that a policy touches
    replication     groups and links to other sites, as a broker sees them
    problems        problems of a group and of links, while they last
    stalls          stalls of a broker's event loop, and their causes
    system_records  a broker's records about its clients: events, decisions, losses, traffic
    replays         managed replays, and durable subscriptions
    journals        segments, their messages, and the effect of archiving and removal
    jobs            options of the pipeline's jobs, and their bounds
    base            base classes of these documents
    client_columns  the columns of the clients' table, for the API, CSV and the page

The broker builds them, the control plane decodes into them, the API's schema and the page's fields are made of them. They
know names, errors and bookmarks, and nothing of the broker. Sizes are bytes and moments ms UTC unless a name or a
description says otherwise; counts are messages.
"""

"""Documents: typed structs that processes exchange as JSON.

    requests        requests to a running broker, each with the type of its answer
    clients         clients and their subscriptions, as a broker sees them now
    instance        a broker as a whole, its snapshot of one second, and the effect of a policy
    replication     groups and links to other sites, as a broker sees them
    problems        current problems of the policy, the group and links
    stalls          stalls of a broker's event loop, and their causes
    system_records  a broker's records about its clients: events, decisions, losses, traffic
    replays         managed replays and durable subscriptions
    journals        segments, their messages, and the effect of archiving and removal
    jobs            options of the pipeline's jobs, and their bounds
    base            base class and shared types of the documents
    client_columns  columns of the clients' table, for the API, CSV and the page

The broker creates documents and the control plane decodes them. The API's schema and the fields of pages are
generated from them. Documents depend on names, errors and bookmarks, but not on the broker. Unless a name or
description says otherwise, sizes are bytes, times are ms UTC, and counts are messages.
"""

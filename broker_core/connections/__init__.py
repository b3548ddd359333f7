"""One client's connection: its commands, what it publishes, what it is told, leases, resume tokens.

connection         reads commands, holds subscriptions, answers
member             a connection as everybody else sees it, and who it is
roster             every connection, and the clients among them by name
ports              what a connection needs of the engine
inbox              what was read and isn't carried out yet
publisher          its batches on their way to the disk
notices            what it is told of decisions, and whether it has heard
logons             who may come in; refused_names: who may not for a while; owners: whose a name is
name_notices       which client of a name stays in a group
anteroom           what may be cost before a logon, and an address's share
door               how much of a turn those may take whom nobody knows
quotas             what a client, and a user's clients together, may have of an instance
heartbeats         what both sides promised to say
acknowledging      windows and the commands that empty them
subscribe_start    subscribes that need something before they begin
leases             subscriptions that end unless they are renewed
resume_tokens      what a dropped client takes along
places             where one was that comes back without a word of that
"""

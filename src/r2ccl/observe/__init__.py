"""What happened and how things are: events, counters, status. Reads the core, changes nothing."""

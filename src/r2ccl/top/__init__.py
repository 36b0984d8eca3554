"""r2ccl-top: looks at the running ranks of this user on this host, through the sockets of ``observe.station``."""

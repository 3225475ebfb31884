"""The same experiment everywhere: launchers, transports, and what must hold in each."""

"""The subcommands of `decodegate`, one module each: `add(commands)` registers it, and its `run` answers."""

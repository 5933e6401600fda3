"""The built-in parts, registered through the same hooks as everybody else's; they import corekit.api only."""

"""The room of the kits that prove a plugin; none is here yet."""

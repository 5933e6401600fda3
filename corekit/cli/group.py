"""A group of verbs that knows what a misspelt one was meant to be."""

from __future__ import annotations

import difflib

import click


class Group(click.Group):
    """A click group; only what it says about an unknown command is its own."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            meant = difflib.get_close_matches(args[0], known, n=1)
            advice = f"Did you mean {meant[0]!r}?" if meant else f"There are: {', '.join(known)}."
            ctx.fail(f"No such command {args[0]!r}. {advice}")
        return super().resolve_command(ctx, args)

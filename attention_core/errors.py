"""The one error that pages catch and show."""


class AttentionError(ValueError):
    """Something the caller asked for cannot be: says what must hold and what came.

    The message is a template with named values, kept apart so that a page can translate the template and fill in
    the values afterwards.

    Args:
        template: an English sentence with ``{name}`` places.
        **values: what goes into the places.

    Example:
        >>> str(AttentionError("d_model ({d_model}) must be divisible by num_heads ({num_heads})",
        ...                    d_model=10, num_heads=3))
        'd_model (10) must be divisible by num_heads (3)'
    """

    def __init__(self, template: str, **values: object) -> None:
        self.template = template
        self.values = values
        super().__init__(template.format(**values))

    def __reduce__(self):
        # Exceptions are pickled by their args, which hold the filled-in text only.
        return _rebuild, (self.template, self.values)


def _rebuild(template: str, values: dict) -> AttentionError:
    return AttentionError(template, **values)

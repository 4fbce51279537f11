"""Middleware that tests name by its path."""

reported = []
"""What it has seen; tests empty it."""


class Both:
    """For functions and for coroutines."""

    made = 0

    def __init__(self):
        type(self).made += 1

    def around_perform(self, handler, perform):
        reported.append(("begin", handler.task.key))
        try:
            return perform()
        finally:
            reported.append(("end", handler.task.key))

    async def aaround_perform(self, handler, perform):
        reported.append(("begin", handler.task.key))
        try:
            return await perform()
        finally:
            reported.append(("end", handler.task.key))


class Demanding(Both):
    def __init__(self, something):
        super().__init__()


def only_functions(handler, perform):
    return perform()


async def only_coroutines(handler, perform):
    return await perform()


no_middleware = "a text"

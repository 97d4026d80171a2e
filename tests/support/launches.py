"""A launcher that records its calls."""


class Launches:
    """A launcher that records its calls; tests set which runners have ended."""

    def __init__(self):
        self.launched = []
        self.exited = []
        self.trouble = None
        self.slow = None
        self.living = []
        self.ended = []
        self.pools_away = frozenset()
        self.pools_shaken = frozenset()

    def launch(self, job):
        self.launched.append((job.id, job.attempt))
        if self.slow:
            assert self.slow.wait(300)
        if self.trouble:
            raise self.trouble

    def poll(self):
        gone, self.exited = self.exited, []
        return gone

    def list_runners(self):
        return list(self.living)

    def terminate(self, runner):
        self.ended.append(runner)

    def unavailable_pools(self):
        return self.pools_away

    def unstable_pools(self):
        return self.pools_shaken

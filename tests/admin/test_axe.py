"""Each page in a real browser: no finding of axe, nothing that default-src 'self' blocks."""

import importlib.util
import json
import unittest
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import User
from django.test import override_settings, tag

from django_perfectqueue import store
from django_perfectqueue.models import Batch, Task

from ..factories import register
from .test_browser import BrowserCase
from .test_scope import APP, OURS, THEIRS, fill
from .test_statements import stories

AXE = importlib.util.find_spec("axe_core_python")
POLICY = "default-src 'self'"
LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "color_scheme": "light"},
}
LISTS = ("batch", "change", "deadletter", "fairshare", "limit", "overview", "queueshare")
LISTS += ("schedule", "task", "worker")
# The box for a search is Django's.
FIND = """async () => (await axe.run({exclude: [["#searchbar"]]})).violations.flatMap(
    one => one.nodes.map(node => `${one.id}: ${node.target.join(' ')}`))"""


def with_policy(get_response):
    def respond(request):
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return respond


@tag("thorough")
@unittest.skipUnless(AXE, "needs the package axe-core-python")
class AxeTests(BrowserCase):
    def paths(self):
        for name in LISTS:
            yield f"{name}/"
        yield f"fairshare/?user={OURS}user&queue={OURS}queue"
        yield f"queueshare/?queue={OURS}queue"
        yield "overview/figures/?queue=stories&over=day"
        yield "overview/release/"
        yield "task/bulk/?status=waiting&verb=cancel"
        yield f"deadletter/bulk/?verb=retry&queue={OURS}queue"
        yield from (f"batch/{batch.pk}/change/" for batch in Batch.objects.all())
        rows = Task.objects.filter(queue="stories")
        for task in (*rows[:5], rows.get(key="workflow")):
            yield f"task/{task.pk}/change/"
        for name in ("fairshare", "limit", "schedule"):
            yield f"{name}/add/"

    def test_each_page_is_clean(self):
        fill(OURS)
        fill(THEIRS)
        stories("stories")
        store.upkeep.wake_forgotten_lanes(using="default")
        register("stories", now=None)
        source = next(Path(AXE.origin).parent.glob("axe*.js")).read_text()
        middleware = [*settings.MIDDLEWARE, f"{__name__}.with_policy"]
        for name, options in LOOKS.items():
            User.objects.all().delete()
            self.open(name, **options)
            blocked = []
            self.page.on("console", lambda line, blocked=blocked: blocked.append(line.text))
            for path in self.paths():
                with self.subTest(look=name, path=path), override_settings(MIDDLEWARE=middleware):
                    self.page.goto(f"{self.live_server_url}{APP}{path}")
                    self.picture(path.replace("/", "-").replace("?", "-"))
                    self.page.evaluate(source)
                    found = self.page.evaluate(FIND)
                    self.assertEqual([], found, json.dumps(found, indent=1))
                    width = self.page.evaluate("document.documentElement.scrollWidth")
                    self.assertLessEqual(width, options["viewport"]["width"])
                    refused = [text for text in blocked if "Content Security Policy" in text]
                    self.assertEqual(refused, [])

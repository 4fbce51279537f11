"""Every page of the admin beside packages that give it another look, and in two admin sites."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from django.test import SimpleTestCase, tag

ROOT = Path(__file__).resolve().parent.parent.parent


@tag("thorough")
class SkinTests(SimpleTestCase):
    def trial(self, skin):
        """Return what each request of a trial got; see tests/skins/trial.py."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.skins.trial"],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.skins.settings",
                "PERFECTQUEUE_TEST_SKIN": skin,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr[-5000:])
        found = json.loads(done.stdout.splitlines()[-1])
        broken = {name: code for name, code in found["pages"].items() if code >= 500}
        self.assertEqual(broken, {}, done.stderr[-5000:])
        # The ids of workers are random.
        codes = sorted(
            (re.sub(r"-?\d{9,}", "ID", name), code) for name, code in found["pages"].items()
        )
        return {"codes": codes, "strays": found["strays"]}

    def test_each_page_is_shown_and_links_to_its_own_site(self):
        plain = self.trial("plain")
        self.assertGreater(sum(code == 200 for _name, code in plain["codes"]), 200)
        self.assertEqual(plain["strays"], {})
        for skin in ("unfold", "grappelli", "jazzmin"):
            if importlib.util.find_spec(skin):
                with self.subTest(skin=skin):
                    self.assertEqual(self.trial(skin), plain)

from django.apps import apps
from django.test import SimpleTestCase, modify_settings, override_settings

from . import case  # isort: skip
from django_perfectqueue.compat import task_backends


class CheckTests(SimpleTestCase):
    def found(self, **params):
        with override_settings(TASKS=case.tasks_with(**params)):
            return [(one.id, one.msg) for one in task_backends["default"].check()]

    def assert_found(self, number, words, **params):
        [(id_, message)] = self.found(**params)
        self.assertEqual(id_, f"perfectqueue.E{number:03}")
        self.assertIn(words, message)

    def test_nothing_is_wrong_with_what_is_right(self):
        good = {"database": "default", "modules": ["tests.backend.jobs"], "max_attempts": 3}
        good["backoff"] = "tests.application.test_policy.forty"
        good["id_function"] = "uuid.uuid1"
        self.assertEqual(self.found(QUEUES=["a", "b"], OPTIONS={**good, "time_limit": 1.5}), [])
        self.assertEqual(self.found(QUEUES=[]), [])

    @modify_settings(INSTALLED_APPS={"remove": "django_perfectqueue"})
    def test_the_app_is_not_installed(self):
        self.assertFalse(apps.is_installed("django_perfectqueue"))
        self.assert_found(30, "'django_perfectqueue' is not installed")

    def test_an_option_that_there_is_not(self):
        self.assert_found(33, "Did you mean 'modules'?", OPTIONS={"module": ["tests.tasks"]})

    def test_an_option_with_a_value_that_will_not_do(self):
        for options, words in (
            ({"database": "elsewhere"}, "must be one of 'default', not 'elsewhere'"),
            ({"modules": "tests.tasks"}, "must be a list of modules"),
            ({"modules": ["tests.nowhere"]}, "'tests.nowhere'"),
            ({"modules": ["no.where"]}, "'no.where'"),
            ({"max_attempts": True}, "must be a whole number of at least 1, not True"),
            ({"backoff": 5}, "must be a function"),
            ({"backoff": "tests.nowhere.wait"}, "No module named 'tests.nowhere'"),
            ({"id_function": "uuid.uuid99"}, 'does not define a "uuid99"'),
            ({"id_function": 7}, "must be a function or a path to one, not 7"),
            ({"time_limit": 0}, "must be a number of seconds above 0, not 0"),
        ):
            with self.subTest(options):
                self.assert_found(34, words, OPTIONS=options)

    def test_a_queue_that_can_have_no_name(self):
        self.assert_found(32, "can't be the name of a queue", QUEUES=["x" * 101])

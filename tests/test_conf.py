from django.test import SimpleTestCase, override_settings

from django_perfectqueue import conf
from django_perfectqueue.exceptions import ConfigError


class OptionsTests(SimpleTestCase):
    def test_every_default_obeys_its_own_rule(self):
        defaults = conf.Options()

        self.assertEqual(conf.problems({name: getattr(defaults, name) for name in defaults}), [])

    def test_a_projects_values_go_before_the_defaults(self):
        with override_settings(PERFECTQUEUE={"ALIVE_TIME": 60}):
            self.assertEqual(conf.options().ALIVE_TIME, 60)
        self.assertEqual(conf.options().ALIVE_TIME, 50)

    def test_a_misspelt_name_is_reported_with_its_neighbour(self):
        with (
            override_settings(PERFECTQUEUE={"PROCESORS": 2}),
            self.assertRaisesMessage(ConfigError, "Did you mean 'PROCESSORS'?"),
        ):
            conf.options()

    def test_a_value_that_will_not_do_is_reported_with_what_would(self):
        cases = {
            "PROCESSORS": (0, "whole number of at least 1"),
            "POLL_INTERVAL": (0, "a number of seconds above 0"),
            "ALIVE_TIME": ("5m", "must be a number"),
            "RETRY_WAIT": (float("inf"), "must be a number"),
            "TASK_PREFETCH": (True, "or None"),
            "PROCESSOR_TYPE": ("fiber", "one of 'process', 'thread', 'async'"),
            "DISPATCH": ("TaskDispatch", "dotted path"),
            "RETENTION": ({"done": 1}, "a dict with seconds or None for '*', 'finished'"),
            "RECYCLE": ({"tasks": 0}, "a whole number for 'tasks'"),
            "NOTIFY": ("run", "the absolute path of a folder"),
            "DEFAULT_QUEUE": ("", "1 to 100 characters"),
            "POLICY": (7, "or a dict from names of queues"),
            "HEADROOM": (1.5, "a whole number, at least 0, or a part of the processors below 1"),
            "QUEUE_ORDER": ("robin", "one of 'fair', 'ordered', 'round_robin', 'shuffled'"),
        }
        for name, (value, reported) in cases.items():
            with self.subTest(name), self.assertRaisesMessage(ConfigError, reported):
                conf.Options().replace(**{name: value})

    def test_headroom_leaves_one_processor_to_all(self):
        cases = [(0, 4, 0), (1, 4, 1), (9, 4, 3), (0.25, 4, 1), (0.3, 4, 2), (1, 1, 0), (0.5, 1, 0)]
        for headroom, processors, kept in cases:
            options = conf.Options().replace(HEADROOM=headroom, PROCESSORS=processors)
            self.assertEqual(options.kept, kept, (headroom, processors))

    def test_what_is_no_dict_is_refused(self):
        with (
            override_settings(PERFECTQUEUE=["PROCESSORS"]),
            self.assertRaisesMessage(ConfigError, "must be a dict"),
        ):
            conf.options()

    def test_each_status_has_its_own_retention(self):
        options = conf.Options().replace(RETENTION={"*": 60, "cancelled": 5, "count": 7})

        self.assertEqual(options.retention_time("finished"), 60)
        self.assertIsNone(options.retention_time("failed"))
        self.assertEqual(options.retention_time("cancelled"), 5)
        self.assertEqual(options.retention_count, 7)
        self.assertEqual(conf.Options().retention_time("expired"), 86_400)

    def test_each_queue_has_the_policy_that_is_given_to_it_or_to_all_others(self):
        for given, reported in (
            ("slots", ["slots", "slots"]),
            ({"mail": "fifo"}, ["fifo", "fair"]),
            ({"mail": "fifo", "*": "slots"}, ["fifo", "slots"]),
        ):
            options = conf.Options().replace(POLICY=given)
            self.assertEqual([options.policy("mail"), options.policy("reports")], reported)

    def test_a_wrong_word_is_reported_with_its_neighbour(self):
        cases = {
            "POLICY": ("Slot", "Did you mean 'slots'?"),
            "QUEUE_ORDER": ("round-robin", "Did you mean 'round_robin'?"),
        }
        for name, (value, reported) in cases.items():
            with self.subTest(name), self.assertRaisesMessage(ConfigError, reported):
                conf.Options().replace(**{name: value})

    def test_a_wrong_policy_of_one_queue_is_reported_with_the_queue(self):
        for given, reported in (
            ({"mail": "fiffo"}, "not {'mail': "),
            ({"mail": "fiffo"}, "Did you mean 'fifo'?"),
            ({"mail": 3}, "not {'mail': "),
            ({"mail": ["fifo"]}, "not {'mail': "),
            ({"": "fair"}, "from names of queues"),
        ):
            with self.subTest(given), self.assertRaisesMessage(ConfigError, reported):
                conf.Options().replace(POLICY=given)

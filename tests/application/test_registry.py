from django.test import SimpleTestCase, override_settings
from django.utils.translation import gettext_lazy, override

from django_perfectqueue.application import Application, Registry, autodiscover, handler
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.schedules.terms import signals_of

from .. import tasks


class RegistryTests(SimpleTestCase):
    def setUp(self):
        before = dict(Registry.routes)
        self.addCleanup(Registry._found.clear)
        self.addCleanup(Registry.routes.update, before)
        self.addCleanup(Registry.routes.clear)

    def test_the_tasks_modules_of_installed_apps_are_found(self):
        self.assertIs(autodiscover().handler_for("wait"), tasks.Wait)

    def test_a_function_is_given_the_task_and_stays_a_function(self):
        self.assertEqual(Registry.handler_for("import.csv").__qualname__, "import_anything")
        self.assertIsNone(tasks.report("anything"))

    def test_attributes_are_those_of_the_handler(self):
        found = Registry.handler_for("fail")
        self.assertEqual((found.max_attempts, found.retry_wait), (2, 0))

    def test_an_attribute_that_is_unknown_is_refused(self):
        with self.assertRaisesMessage(ConfigError, "not 'max_atempts'"):
            handler("new", max_atempts=3)

    def test_attributes_leave_the_class_as_it_is(self):
        class Own(Application):
            pass

        self.assertIs(handler("own", max_attempts=1)(Own), Own)
        self.assertIsNone(Own.max_attempts)
        self.assertEqual(Registry.handler_for("own").max_attempts, 1)

    def test_signals_are_declared_with_labels(self):
        handler("sign", signals={"approved": gettext_lazy("Watch")})(lambda task: None)
        with override("de"):
            shown = {name: str(label) for name, label in signals_of("sign").items()}
        self.assertEqual(shown, {"approved": "Beobachten"})
        self.assertEqual((signals_of("report"), signals_of("nobody knows it")), ({}, {}))
        elsewhere = override_settings(PERFECTQUEUE={"DISPATCH": "nowhere.Dispatch"})
        with elsewhere, self.assertRaisesMessage(ConfigError, "'nowhere.Dispatch' can't be imp"):
            signals_of("sign")
        for signals in (
            {"approval": {"approved": 1}},
            "approved",
            ["approved"],
            {"": "Approve"},
            {"x" * 101: "Approve"},
            {"a": 1},
        ):
            with self.subTest(signals), self.assertRaisesMessage(ConfigError, "signals must be a"):
                handler("wrong", signals=signals)(lambda task: None)

    def test_two_handlers_can_not_have_one_type(self):
        """
        Which of them ran would depend on the order of imports.
        """
        with self.assertRaisesMessage(ConfigError, "Both tests.tasks.echo and "):
            handler("echo")(lambda task: None)

    def test_the_same_handler_may_come_again(self):
        """
        A module that is imported twice, or reloaded, is no conflict.
        """
        handler("echo")(tasks.echo)

    def test_what_others_call_it_is_understood(self):
        for name in ("max_retries", "max_attempt"):
            with self.assertRaisesMessage(ConfigError, "Did you mean 'max_attempts'?"):
                handler("new", **{name: 3})

    def test_a_function_that_takes_no_task_is_refused(self):
        def forgetful():
            pass

        def greedy(task, name):
            pass

        for function in (forgetful, greedy):
            with self.assertRaisesMessage(ConfigError, f"def {function.__name__}(task)"):
                handler("new")(function)

    def test_the_type_must_be_given(self):
        with self.assertRaisesMessage(ConfigError, "@handler needs the type"):
            handler(lambda task: None)

    def test_only_handlers_may_be_registered(self):
        with self.assertRaisesMessage(ConfigError, "not an Application"):
            handler("new")(dict)

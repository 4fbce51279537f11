import io
import tempfile

from django.core.management import load_command_class
from django.test import SimpleTestCase

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.management.commands import pq_worker
from django_perfectqueue.management.commands.pq_worker import (
    OVERRIDES,
    chosen_options,
    exec_of,
    work_of,
)
from django_perfectqueue.management.flags import FLAGS


def options_of(*words):
    parser = load_command_class("django_perfectqueue", "pq_worker").create_parser("", "")
    return vars(parser.parse_args(words))


class ExecTests(SimpleTestCase):
    def test_a_program_is_written_as_for_a_shell(self):
        dispatch = exec_of("""sh -c 'echo "$1"' -- "a b" """)
        for type_ in ("report", "many\nlines", "tests.backend.jobs.add"):
            handler = dispatch.handler_for(type_)
            self.assertEqual(handler.command, ["sh", "-c", 'echo "$1"', "--", "a b"])
        self.assertEqual(
            pq_worker.handlers(dispatch),
            """Every task is run by: sh -c 'echo "$1"' -- 'a b'""",
        )

    def test_what_is_no_program_is_refused(self):
        with tempfile.NamedTemporaryFile() as file:
            table = [
                ("", "--exec needs a program"),
                ("'' x", "--exec needs a program"),
                ("sh -c 'x", "--exec can't be read: No closing quotation"),
                ("no-such-program x", "there is no program 'no-such-program' on PATH"),
                (f"{file.name} x", "or it may not be executed"),
            ]
            for text, message in table:
                with self.subTest(text), self.assertRaisesMessage(ConfigError, message):
                    exec_of(text)

    def test_a_dispatch_beside_it_is_refused(self):
        options = options_of("tests.tasks.SampleDispatch", "--exec", "true")
        with self.assertRaisesMessage(ConfigError, "but not both"):
            work_of(options, chosen_options(options), "default")

    def test_each_option_overrides_its_setting(self):
        words = ["--wait-for-database", "5", "--health-port", "[::1]:8001", "--queue", "mail"]
        expected = {}
        for number, (option, setting) in enumerate(OVERRIDES.items(), start=2):
            text = {"processor_type": "thread", "queue_order": "shuffled"}.get(option, str(number))
            flag = f"--{option.replace('_', '-')}"
            words += [flag, text]
            value = FLAGS[flag].get("type", str)(text)
            name, _dot, key = setting.partition(".")
            expected[name] = {**expected.get(name, {}), key: value} if key else value
        chosen = chosen_options(options_of(*words))
        self.assertEqual({name: getattr(chosen, name) for name in expected}, expected)

    def test_it_serves_the_default_queue_or_those_that_are_named(self):
        """
        Those of Django's tasks have handlers; a program for them would be a mistake.
        """
        values = chosen_options(options_of())
        _dispatch, queues = work_of(options_of("--exec", "true"), values, "default")
        self.assertEqual(queues, ["default"])

    def test_its_help_tells_what_the_program_gets(self):
        out = io.StringIO()
        load_command_class("django_perfectqueue", "pq_worker").create_parser("", "").print_help(out)
        self.assertIn("--exec COMMAND", out.getvalue())

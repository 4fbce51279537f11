from datetime import timedelta
from unittest import mock

from django.test import SimpleTestCase, TestCase, override_settings

from django_perfectqueue.checks.settings import check_named, check_settings
from django_perfectqueue.exceptions import ConfigError, InvalidTaskError, PayloadError
from django_perfectqueue.models import Task
from django_perfectqueue.payload import codecs
from django_perfectqueue.payload.codecs import Codec, FernetCodec, decode
from django_perfectqueue.queue import Queue

HERE = "tests.payload.test_codecs"
FERNET = "django_perfectqueue.payload.codecs.FernetCodec"
JSON = "django_perfectqueue.payload.codecs.JSONCodec"
PICKLE = "django_perfectqueue.payload.codecs.PickleCodec"
KEYS = (
    "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
    "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=",
)


class Backwards(Codec):
    name = "backwards"

    def seal(self, text):
        return text[::-1]

    def unseal(self, text):
        return text[::-1]


class Misnamed(Codec):
    name = "Not a name"


def using(*paths, **settings):
    return override_settings(PERFECTQUEUE={"CODECS": paths, **settings})


def submit(key="k1", data=None):
    return Queue().submit(key, "report", data)


class CodecTests(TestCase):
    def test_what_is_written_names_its_codec_and_is_read_by_it(self):
        with using(f"{HERE}.Backwards"):
            task = submit(data={"a": 1})
            held = Queue().poll()
            held.update_data({"b": 2})
            held.finish([3])
            row = Task.objects.get()
            self.assertEqual((row.data, task.metadata().result), ({"a": 1, "b": 2}, [3]))
        self.assertTrue(row.payload.startswith("backwards:}"))
        self.assertTrue(row.result_text.startswith("backwards:]"))

    def test_plain_json_is_read_whatever_writes(self):
        for value in (None, True, False, 0, -1.5, "gzip:", "fernet:x", [], {"a": "b:c"}):
            text = codecs.stored(Codec().dumps(value), Codec())
            with self.subTest(text), using(f"{HERE}.Backwards"):
                self.assertEqual(decode(text), value)

    def test_the_first_writes_and_all_read(self):
        with using(f"{HERE}.Backwards"):
            submit("old", {"a": 1})
        with using(JSON, f"{HERE}.Backwards"):
            submit("new", {"a": 1})
            self.assertEqual([row.data for row in Queue().list()], [{"a": 1}, {"a": 1}])
        self.assertEqual(Task.objects.get(key="new").payload, '{"a":1}')

    def test_one_that_is_not_there_is_named(self):
        with using(f"{HERE}.Backwards"):
            submit()
        with self.assertRaisesMessage(PayloadError, "a codec 'backwards', which is not in"):
            _data = Task.objects.get().data

    def test_what_is_long_is_compressed_before_it_is_sealed(self):
        data = ["long"] * 1000
        with using(Backwards(compress_above=100)):
            submit(data=data)
            row = Task.objects.get()
            self.assertEqual(row.data, data)
        self.assertLess(len(row.payload), 200)

    def test_the_size_that_is_limited_is_that_before_compression(self):
        codec = Backwards(compress_above=10)
        with using(codec, MAX_PAYLOAD_SIZE=100), self.assertRaises(InvalidTaskError):
            submit(data="x" * 200)

    def test_wrong_codecs_are_reported(self):
        for path, reported in (
            ("tests.nowhere.Codec", "can't be imported"),
            ("tests.payload.test_codecs.submit", "is no codec"),
            (f"{HERE}.Misnamed", "lower-case"),
        ):
            with self.subTest(path), using(path):
                with self.assertRaisesMessage(ConfigError, reported):
                    submit()
                [found] = check_named()
                self.assertIn(reported, found.msg)
        with using(JSON, f"{HERE}.Backwards", JSON):
            self.assertIn("two codecs", check_named()[0].msg)
        with using(JSON, f"{HERE}.Backwards"):
            self.assertEqual(check_named(), [])


class FernetTests(TestCase):
    def test_nothing_of_it_can_be_read_in_the_database(self):
        with using(FERNET):
            submit(data={"iban": "DE02120300000000202051"})
            Queue().poll().finish({"paid": "yes, in full"})
            row = Task.objects.get()
            self.assertEqual(row.data, {"iban": "DE02120300000000202051"})
            self.assertEqual(row.result, {"paid": "yes, in full"})
        for text in (row.payload, row.result_text):
            self.assertTrue(text.startswith("fernet:"))
            self.assertNotIn("DE02", text)

    def test_keys_can_be_changed_while_tasks_wait(self):
        old, new = KEYS
        with using(FernetCodec([old])):
            submit("old", 1)
        with using(FernetCodec([new, old])):
            submit("new", 2)
            self.assertEqual([row.data for row in Queue().list().order_by("pk")], [1, 2])
        with using(FernetCodec([new])):
            self.assertEqual(Task.objects.get(key="new").data, 2)
            with self.assertRaisesMessage(PayloadError, "none of the keys decrypts it"):
                _data = Task.objects.get(key="old").data

    def test_one_may_insist_that_it_is_sealed(self):
        with using(FERNET):
            submit("sealed", data=1)
            submit("plain", data=2)
        plain = Task.objects.filter(key="plain")
        for text in ('{"who":"anyone"}', '"fernet"', "gzip:H4sIAAAAAAAC/w=="):
            plain.update(payload=text)
            with self.subTest(text), using(FernetCodec(reads_plain=False)):
                self.assertEqual(Task.objects.get(key="sealed").data, 1)
                with self.assertRaisesMessage(PayloadError, "reads_plain"):
                    _data = plain.get().data
        with using(FernetCodec(reads_plain=False)):
            self.assertEqual(check_named(), [])

    def test_without_keys_it_takes_the_projects_own(self):
        with using(FERNET):
            with self.settings(SECRET_KEY="first", SECRET_KEY_FALLBACKS=[]):
                submit(data=1)
            with self.settings(SECRET_KEY="second", SECRET_KEY_FALLBACKS=["first"]):
                self.assertEqual(Task.objects.get().data, 1)
            other = self.settings(SECRET_KEY="second", SECRET_KEY_FALLBACKS=[])
            with other, self.assertRaises(PayloadError):
                _data = Task.objects.get().data

    def test_text_that_was_changed_is_refused(self):
        with using(FERNET):
            submit(data=1)
            row = Task.objects.get()
            Task.objects.update(payload=row.payload[:-4] + "AAA=")
            with self.assertRaises(PayloadError):
                _data = Task.objects.get().data

    def test_a_wrong_key_is_reported_without_showing_it(self):
        for wrong in (["not a key"], [7], "not a key"):
            with self.subTest(wrong), using(FernetCodec(wrong)):
                [found] = check_named()
                self.assertIn("generate_key", found.msg)
                self.assertNotIn("not a key", found.msg)

    def test_a_package_that_is_missing_is_named(self):
        with using(FERNET), mock.patch.dict("sys.modules", {"cryptography.fernet": None}):
            codecs.codecs.cache_clear()
            self.assertIn("pip install", check_named()[0].msg)
        codecs.codecs.cache_clear()


class PickleTests(TestCase):
    def test_it_takes_python_values_and_is_warned_of(self):
        value = {"at": timedelta(seconds=5), 1: (2, 3)}
        with using(PICKLE):
            submit(data=value)
            self.assertEqual(Task.objects.get().data, value)
            self.assertEqual([one.id for one in check_settings()], ["perfectqueue.W020"])

    def test_nothing_is_unpickled_unless_it_was_asked_for(self):
        with using(PICKLE):
            submit(data={1})
        with mock.patch("pickle.loads") as loads, self.assertRaises(PayloadError):
            _data = Task.objects.get().data
        loads.assert_not_called()

    def test_what_can_not_be_pickled_or_read_is_reported(self):
        with using(PICKLE):
            with self.assertRaisesMessage(InvalidTaskError, "can't be written as pickle"):
                submit(data=lambda: None)
            submit(data=1)
            for broken in ("pickle:", "pickle:!", "pickle:gASV"):
                Task.objects.update(payload=broken)
                with self.subTest(broken), self.assertRaises(PayloadError):
                    _data = Task.objects.get().data


class DefaultTests(SimpleTestCase):
    def test_it_is_json(self):
        self.assertIs(type(codecs.writer()), codecs.JSONCodec)
        self.assertEqual(codecs.stored('{"a":1}', codecs.writer()), '{"a":1}')

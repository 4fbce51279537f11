"""The checker finds what is planted in workflows, sequences and what is merged or there once."""

from dataclasses import replace

from .test_chaos import Book, CheckerCase, setUpModule  # noqa: F401

NAMES = ("0", "a", "1", "version", "join", "nap", "2", "3", "b", "4")
ANSWERS = {"a": "s1", "b": "s2", "version": True, "join": [{"attempt": 1}] * 3, "nap": None}


class Play(Book):
    """A workflow, task 1, that attempt 1 begins and attempt 2 finishes, and its children."""

    def __init__(self):
        super().__init__()
        self.notes, self.steps, self.value = [], [], {}
        for number in range(3):
            task = 11 + number
            self.acquire(9.0, task).run(9.1, 9.2, task).close(9.3, task)
            data = {"life": f"flow/{number}"}
            self.task(task, type="child", data=data, life=data["life"], result={"attempt": 1})
        data = {"timeout": 3.0, "seconds": 0.1, "errors": 0}
        self.acquire(10.0).run(10.0, None).give_back(14.0)
        self.acquire(14.1, attempt=2, holder=20).run(14.1, 16.0, attempt=2, holder=20)
        self.task(1, key="flow", type="workflow", data=data, queue="plays")
        self.close(16.1, attempt=2, holder=20)
        for place, name in enumerate(NAMES):
            at = 10.2 + place * 0.2
            if name.isdigit():
                self.note(at, "runs", name, f"v{name}").keep(at + 0.05, name, f"v{name}")
            self.note(at + 0.1, "given", name, ANSWERS.get(name, f"v{name}"))
        self.signal(9.0, "a", "s1").signal(9.0, "b", "s2")
        result = {"attempt": 2, "value": dict(self.value)}
        self.rows[1] = replace(self.rows[1], result=result)

    def note(self, at, what, name, value, attempt=1, task=1):
        self.notes.append(self.kinds.Note(task, attempt, attempt * 10, at, what, name, value))
        if what == "given":
            self.value.setdefault(name, value)
        return self

    def keep(self, at, name, value):
        self.steps.append(self.kinds.Step(at, 1, name, f'"{value}"'))
        return self

    def signal(self, at, name, value, **more):
        return self.call(at, "signal", key="flow", name=name, value=value, **more)

    def debounce(self, at, life, answer):
        tasks = [{"life": life, "queue": "plays", "key": "m"}]
        given = {"key": "m", "life": life, "terms": {"debounce": 0.6}, "tasks": tasks}
        return self.call(at, "debounce", answer=answer, on_conflict="ignore", **given)

    def without(self, *names):
        self.notes = [one for one in self.notes if one.name not in names]
        return self

    def history(self, **more):
        return super().history(**{"notes": self.notes, "steps": self.steps, **more})


class WorkflowTests(CheckerCase):
    def test_one_that_goes_well(self):
        self.assert_good(Play())
        self.assert_good(Play().note(14.5, "given", "0", "v0", attempt=2))

    def test_a_kept_step_that_runs_again_is_found(self):
        self.assert_found("workflow", Play().note(14.5, "runs", "0", "other", attempt=2))
        # One that was frozen runs it when another has the task; it is not kept.
        self.assert_good(Play().note(14.5, "runs", "0", "other"))

    def test_what_is_kept_for_who_has_lost_the_task_is_found(self):
        book = Play().note(14.5, "runs", "5", "late").keep(14.6, "5", "late")
        self.assert_found("workflow", book)

    def test_another_value_and_another_result_are_found(self):
        self.assert_found("workflow", Play().note(14.5, "given", "0", "other", attempt=2))
        self.assert_found("workflow", Play().without("nap"))
        book = Play()
        value = {**book.value, "4": "other"}
        book.rows[1] = replace(book.rows[1], result={"attempt": 2, "value": value})
        self.assert_found("workflow", book)

    def test_a_sleep_that_is_too_short_is_found(self):
        book = Play()
        book.rows[1] = replace(book.rows[1], data={**book.rows[1].data, "seconds": 2.0})
        self.assert_found("workflow", book)

    def test_a_signal_that_is_lost_invented_or_accepted_twice_is_found(self):
        self.assert_found("signal", Play().signal(9.5, "a", "s3"))
        self.assert_good(Play().signal(9.5, "a", "s3", answer="refused"))
        for answer in ("undone", "refused"):
            book = Play()
            book.calls[0] = replace(book.calls[0], answer=answer)
            self.assert_found("signal", book)
        book.calls[0] = replace(
            book.calls[0], answer="broken", given={**book.calls[0].given, "how": "x"}
        )
        self.assert_good(book)

    def test_a_wait_that_ends_without_its_signal_is_found(self):
        def unsent(at, seconds):
            book = Play().without("b")
            book.note(at, "given", "b", None, attempt=2)
            data = {**book.rows[1].data, "timeout": seconds}
            value = {**book.value, "b": None}
            result = {"attempt": 2, "value": value}
            book.rows[1] = replace(book.rows[1], data=data, result=result)
            return book

        self.assert_found("signal", unsent(15.0, 3.0))
        self.assert_found("signal", unsent(15.0, None))
        book = unsent(15.0, 3.0)
        book.calls = [one for one in book.calls if one.given["name"] != "b"]
        self.assert_good(book)

    def test_a_child_that_is_stored_twice_or_not_joined_is_found(self):
        book = Play()
        book.acquire(9.0, 14).run(9.1, 9.2, 14).close(9.3, 14)
        data = {"life": "flow/1"}
        book.task(14, type="child", data=data, life="flow/1", result={"attempt": 1})
        self.assert_found("child", book)
        book = Play()
        book.rows[12] = replace(book.rows[12], result=None)
        self.assert_found("child", book)


class SequenceTests(CheckerCase):
    def members(self, *begins, key="line-1-a", outcome="finished"):
        book = Book()
        for number, begin in enumerate(begins, 1):
            book.task(number, key=f"{key}-{number}", type="strand", queue="plays")
            book.acquire(begin - 0.1, number).run(begin, begin + 1.0, number)
            book.close(begin + 1.1, number)
        book.rows[number] = replace(book.rows[number], outcome=outcome)
        if outcome != "finished":
            book.closes[-1] = replace(book.closes[-1], outcome=outcome)
        return book

    def test_the_order_of_a_sequence(self):
        self.assert_good(self.members(10.0, 12.0))
        self.assert_found("sequence", self.members(10.0, 10.5))
        self.assert_found("sequence", self.members(12.0, 10.0))
        self.assert_found("sequence", self.members(10.0, 12.0, outcome="failed"))


class OnceTests(CheckerCase):
    def merged(self, *lives, rolled_back=(), at=11.0, ran="two"):
        book = Play()
        book.acquire(at, 2).run(at, at + 0.1, 2).close(at + 0.2, 2)
        book.task(2, key="m~0000000000000001", type="merged", queue="plays", life=lives[0])
        for number, life in enumerate(lives):
            answer = "undone" if life in rolled_back else "done"
            book.debounce(9.0 + number * 0.2, life, answer)
        return book.note(at + 0.05, "runs", "data", ran, task=2)

    def test_what_is_merged(self):
        self.assert_good(self.merged("one", "two"))
        self.assert_found("debounce", self.merged("one", "two", ran="one"))
        self.assert_found("debounce", self.merged("one", "two", at=9.5))
        self.assert_found("debounce", self.merged("one", "two", rolled_back=["two"]))

    def test_what_is_there_once(self):
        def once(*begins, asked=9.0):
            book = Book().call(
                asked,
                "once",
                number=1,
                on_conflict="ignore",
                tasks=[{"life": life, "queue": "plays", "key": life} for life in "xyz"],
            )
            for number, begin in enumerate(begins, 1):
                book.acquire(begin, number).run(begin, begin + 1.0, number)
                book.task(number, key=f"x~{number}", type="once", queue="plays", life="x")
                book.rows[number] = replace(book.rows[number], data={"number": 1})
                book.born[number] = replace(book.born[number], at=begin - 0.1)
                book.close(begin + 1.1, number)
            return book

        self.assert_good(once(9.1, 12.0))
        self.assert_found("unique", once(9.1, 9.5))
        self.assert_found("unique", once(12.0, asked=9.0))

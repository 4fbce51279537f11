from tests.settings import *  # noqa: F403

PERFECTQUEUE = {"ALIVE_TIME": 20, "POLL_INTERVAL": 0.2, "RETRY_WAIT": 0.5}

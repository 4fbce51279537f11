"""The work that no caller asks for: due timers, lapsed leases, dead holders, deletion, recounts."""

from .idle_lanes import FIRST_ID, forget_holds, forget_idle, forget_lanes, forget_meters
from .deletion import Surplus, Swept, clear, delete_ended, newest_id, purge, purgeable, surplus
from .drift import recount_accounts, recount_meters
from .timers import give_back, wake_forgotten_lanes

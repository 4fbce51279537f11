"""What no caller asks for: due timers, lapsed leases, dead holders, deletion, recounts."""

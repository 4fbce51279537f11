"""Notify other processes that something has changed."""

from .datagrams import Notification, SocketListener
from .postgres import ChannelListener
from .ring import announce, end_channels, end_listener, ends, find_all, listener_of, live, watch

"""Metrics: ``path("pq/metrics", include("django_perfectqueue.metrics.urls"))``."""

from __future__ import annotations

from django.urls import path

from . import views

app_name = "perfectqueue-metrics"
urlpatterns = [path("", views.metrics, name="metrics")]

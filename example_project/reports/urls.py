from django.urls import path

from . import views

app_name = "reports"
urlpatterns = [
    path("", views.overview, name="overview"),
    path("customers/<slug:slug>/", views.customer, name="customer"),
]

"""Addresses of the pages."""

from __future__ import annotations

from django.urls import path

from console.views import access, client, clients, decisions, journals, overview, policies, runs

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("login/", access.login, name="login"),
    path("logout/", access.logout, name="logout"),
    path("clients/", clients.clients, name="clients"),
    path("clients/<str:name>/", client.client, name="client"),
    path("clients/<str:name>/disconnect/", client.disconnect, name="client_disconnect"),
    path("decisions/", decisions.decisions, name="decisions"),
    path("policies/", policies.policies, name="policies"),
    path("policies/in-force/", policies.in_force, name="policies_in_force"),
    path("policies/instance/", policies.change_instance, name="policies_instance"),
    path("policies/transports/<str:name>/", policies.change_transport, name="policies_transport"),
    path("journals/", journals.journals, name="journals"),
    path("journals/plan/", journals.plan, name="journals_plan"),
    path("journals/apply/", journals.apply, name="journals_apply"),
    path("runs/", runs.runs, name="runs"),
    path("runs/list/", runs.runs_list, name="runs_list"),
    path("runs/pipeline/", runs.start_job, name="runs_pipeline"),
    path("runs/<uuid:run_id>/cancel/", runs.cancel, name="runs_cancel"),
]

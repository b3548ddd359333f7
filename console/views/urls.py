"""Addresses of the pages."""

from __future__ import annotations

from django.urls import path

from console.views import (
    access,
    audit,
    client,
    clients,
    decisions,
    journals,
    overview,
    people,
    policies,
    runs,
)

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
    path("audit/", audit.audit, name="audit"),
    path("access/", people.access, name="access"),
    path("access/people/", people.create, name="access_create"),
    path("access/people/<str:name>/password/", people.password, name="access_password"),
    path("access/people/<str:name>/active/", people.active, name="access_active"),
    path("access/grants/", people.grant, name="access_grant"),
    path("access/grants/<int:grant_id>/revoke/", people.revoke_grant, name="access_grant_revoke"),
    path("access/tokens/", people.make_token, name="access_token"),
    path("access/tokens/<int:token_id>/revoke/", people.revoke_token, name="access_token_revoke"),
]

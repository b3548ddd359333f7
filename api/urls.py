"""Addresses under /api/v1/."""

from __future__ import annotations

from django.urls import path

from api.schema import SchemaView
from api.views import access, actions, audit, clients, ledger, messages, people, policies, runs, statistics

app_name = "api"

urlpatterns = [
    path("schema", SchemaView.as_view(api_version="v1"), name="schema"),
    path("auth/login", access.LoginView.as_view(), name="login"),
    path("auth/logout", access.LogoutView.as_view(), name="logout"),
    path("auth/me", access.AccountView.as_view(), name="me"),
    path("tokens", access.TokensView.as_view(), name="tokens"),
    path("tokens/<int:token_id>", access.TokenView.as_view(), name="token"),
    path("status", clients.StatusView.as_view(), name="status"),
    path("transports", policies.TransportsView.as_view(), name="transports"),
    path("transports/<str:name>", policies.TransportView.as_view(), name="transport"),
    path("policies", policies.PolicyView.as_view(), name="policies"),
    path("policies/revisions", policies.RevisionsView.as_view(), name="revisions"),
    path("policies/revisions/<int:number>", policies.RevisionView.as_view(), name="revision"),
    path("clients", clients.ClientsView.as_view(), name="clients"),
    path("clients/<str:name>", clients.ClientView.as_view(), name="client"),
    path("clients/<str:name>/disconnect", clients.DisconnectView.as_view(), name="disconnect"),
    path("clients/<str:name>/history", clients.ClientHistoryView.as_view(), name="client-history"),
    path("clients/<str:name>/durables/<str:durable>", ledger.DurableView.as_view(), name="durable"),
    path("durables", ledger.DurablesView.as_view(), name="durables"),
    path("ledger", ledger.LedgerView.as_view(), name="ledger"),
    path("decisions", clients.DecisionsView.as_view(), name="decisions"),
    path("journals", runs.JournalsView.as_view(), name="journals"),
    path("journals/<str:action>", runs.JournalActionView.as_view(), name="journal-action"),
    path("journals/<str:action>/plan", runs.JournalPlanView.as_view(), name="journal-plan"),
    path("journals/<str:action>/apply", runs.JournalApplyView.as_view(), name="journal-apply"),
    path("pipeline/<str:job>", runs.PipelineView.as_view(), name="pipeline"),
    path("runs", runs.RunsView.as_view(), name="runs"),
    path("runs/<str:run_id>", runs.RunView.as_view(), name="run"),
    path("runs/<str:run_id>/cancel", runs.CancelView.as_view(), name="run-cancel"),
    path("runs/<str:run_id>/approve", runs.ApproveView.as_view(), name="run-approve"),
    path("runs/<str:run_id>/repeat", runs.RepeatView.as_view(), name="run-repeat"),
    path("actions", actions.ActionsView.as_view(), name="actions"),
    path("actions/firings", actions.FiringsView.as_view(), name="action-firings"),
    path("actions/<int:action_id>", actions.ActionView.as_view(), name="action"),
    path("actions/<int:action_id>/plan", actions.ActionPlanView.as_view(), name="action-plan"),
    path("actions/<int:action_id>/apply", actions.ActionApplyView.as_view(), name="action-apply"),
    path("actions/at/<str:path>", actions.RequestView.as_view(), name="action-request"),
    path("actions/at/<str:path>/plan", actions.RequestPlanView.as_view(), name="action-request-plan"),
    path("events/<str:name>", actions.EventView.as_view(), name="event"),
    path("schedules", actions.SchedulesView.as_view(), name="schedules"),
    path("audit", audit.AuditView.as_view(), name="audit"),
    path("people", people.PeopleView.as_view(), name="people"),
    path("people/<str:name>", people.PersonView.as_view(), name="person"),
    path("people/<str:name>/password", people.PersonPasswordView.as_view(), name="person-password"),
    path("people/<str:name>/grants", people.PersonGrantsView.as_view(), name="person-grants"),
    path("grants/<int:grant_id>", people.GrantView.as_view(), name="grant"),
    path("statistics", statistics.StatisticsView.as_view(), name="statistics"),
    path("topics/<path:topic>/messages", messages.MessagesView.as_view(), name="messages"),
]

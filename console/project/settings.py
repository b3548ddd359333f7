"""Django settings. All settings of an installation come from environment variables; docs/api.md lists them.

All files of Sluice are under SLUICE_HOME: database, secret key, journals, spools, sockets, lake.
"""

from __future__ import annotations

import os
from pathlib import Path
from socket import gethostname
from typing import Any

import environ
from kombu.entity import Queue

from broker_core.documents.clients import DeliveryState
from broker_core.group.settings import HOLD_MS
from console.broker_addresses import queues_known
from console.project.home import (
    broker_addresses,
    celery_broker_url,
    group_settings,
    local_zone,
    prepare_home,
    reserved_directories,
    secret_key,
    trusted_proxies,
    web_tls_files,
)
from console.queue_names import CHORES_QUEUE, USUAL_QUEUE
from console.supervisor.socket_paths import run_directory

BASE_DIR = Path(__file__).resolve().parent.parent.parent
env = environ.Env()

# --- Sluice -------------------------------------------------------------------------------------------------
SLUICE_HOME = prepare_home(Path(env.str("SLUICE_HOME", default=str(BASE_DIR / "var"))))
SLUICE_INSTANCE = env.str("SLUICE_INSTANCE", default="sluice-1")
SLUICE_WEB_HOST = env.str("SLUICE_WEB_HOST", default="127.0.0.1")
SLUICE_WEB_PORT = env.int("SLUICE_WEB_PORT", default=8000)
# Certificate chain and key of the console, PEM. Without them a proxy provides TLS (SLUICE_HTTPS), or there
# is none.
SLUICE_WEB_TLS = web_tls_files(
    env.str("SLUICE_WEB_TLS_CERTIFICATE", default=""), env.str("SLUICE_WEB_TLS_KEY", default="")
)
# Ports of a new instance's transports. Later the policy has them.
SLUICE_TCP_PORT = env.int("SLUICE_TCP_PORT", default=9007)
SLUICE_WEBSOCKET_PORT = env.int("SLUICE_WEBSOCKET_PORT", default=9008)
SLUICE_STOMP_PORT = env.int("SLUICE_STOMP_PORT", default=61613)
SLUICE_STOMP_WS_PORT = env.int("SLUICE_STOMP_WS_PORT", default=61614)
# Directory of Unix sockets: SLUICE_HOME/run, or a shorter path if that is too long for the kernel.
SLUICE_RUN_DIRECTORY = run_directory(SLUICE_HOME, (f"{SLUICE_INSTANCE}.sock", "redis.sock"))
SLUICE_JOURNAL_DIRECTORY = Path(env.str("SLUICE_JOURNAL_DIRECTORY", default=str(SLUICE_HOME / "journal")))
SLUICE_ARCHIVE_DIRECTORY = Path(env.str("SLUICE_ARCHIVE_DIRECTORY", default=str(SLUICE_HOME / "archive")))
SLUICE_SPOOL_DIRECTORY = Path(env.str("SLUICE_SPOOL_DIRECTORY", default=str(SLUICE_HOME / "spool")))
# Group of brokers that carry this instance on one replicated log (docs/group.md). Without engines, no group.
SLUICE_GROUP = group_settings(
    SLUICE_INSTANCE,
    env.str("SLUICE_GROUP_MEMBER", default=gethostname().partition(".")[0]),
    env.list("SLUICE_GROUP_ENGINES", default=[]),
    env.int("SLUICE_GROUP_COPIES", default=0),
    env.int("SLUICE_GROUP_HOLD_MS", default=HOLD_MS),
    env.str("SLUICE_GROUP_CA", default=""),
)
# Brokers that console, API and this machine's worker can reach, if not only this machine's (docs/group.md).
# Each is INSTANCE or INSTANCE/MEMBER with tls://HOST:PORT or unix:PATH. Below, the authority of their
# certificates and the file of their tokens.
SLUICE_BROKERS = broker_addresses(env.list("SLUICE_BROKERS", default=[]), SLUICE_RUN_DIRECTORY)
SLUICE_BROKERS_CA = env.str("SLUICE_BROKERS_CA", default="")
SLUICE_BROKERS_TOKENS = env.str("SLUICE_BROKERS_TOKENS", default="")
# Listener of this machine's broker for consoles on other machines: HOST:PORT, certificate and key, hashes
# of tokens.
SLUICE_CONTROL_LISTEN = env.str("SLUICE_CONTROL_LISTEN", default="")
SLUICE_CONTROL_CERTIFICATE = env.str("SLUICE_CONTROL_CERTIFICATE", default="")
SLUICE_CONTROL_KEY = env.str("SLUICE_CONTROL_KEY", default="")
SLUICE_CONTROL_TOKENS = env.str("SLUICE_CONTROL_TOKENS", default="")
# Credentials for links to other sites: one line `DESTINATION TOKEN` or `DESTINATION USER PASSWORD` each.
SLUICE_LINK_SECRETS = env.str("SLUICE_LINK_SECRETS", default="")
# Whether `up` starts console, usual worker and beat here: one of several machines does. The others start
# broker and journal worker.
SLUICE_CONSOLE = env.bool("SLUICE_CONSOLE", default=True)
# Offset of this machine's transports from the policy's ports, for several members on one machine.
SLUICE_PORTS_APART = env.int("SLUICE_PORTS_APART", default=0)
# First port of the NATS servers that `make up GROUP=3` starts.
SLUICE_ENGINE_PORT = env.int("SLUICE_ENGINE_PORT", default=4222)
# The policy's journal, archive and spool directories must be below one of these.
SLUICE_DIRECTORY_ROOTS = [
    Path(one)
    for one in env.list(
        "SLUICE_DIRECTORY_ROOTS",
        default=[
            *(str(SLUICE_HOME / name) for name in ("journal", "archive", "spool")),
            str(SLUICE_JOURNAL_DIRECTORY),
            str(SLUICE_ARCHIVE_DIRECTORY),
            str(SLUICE_SPOOL_DIRECTORY),
        ],
    )
]
SLUICE_LAKE_DIRECTORY = Path(env.str("SLUICE_LAKE_DIRECTORY", default=str(SLUICE_HOME / "lake")))
SLUICE_JOBS_DIRECTORY = Path(env.str("SLUICE_JOBS_DIRECTORY", default=str(SLUICE_HOME / "jobs")))
# Directories that no directory of a policy may overlap, even below a root: code, and files of other parts.
SLUICE_RESERVED_DIRECTORIES = reserved_directories(SLUICE_HOME, BASE_DIR, SLUICE_RUN_DIRECTORY)
SLUICE_PIPELINE_DIRECTORIES = (SLUICE_LAKE_DIRECTORY, SLUICE_JOBS_DIRECTORY)
# Proxies that are trusted for the client's address (X-Forwarded-For) and for TLS. No other sender of these
# headers is trusted.
SLUICE_TRUSTED_PROXIES = trusted_proxies(env.list("SLUICE_TRUSTED_PROXIES", default=[]))
SLUICE_CONTROL_TIMEOUT_S = env.float("SLUICE_CONTROL_TIMEOUT_S", default=5.0)
SLUICE_SAMPLE_RETENTION_HOURS = env.int("SLUICE_SAMPLE_RETENTION_HOURS", default=24)
# Limits of what actions may do outside of Sluice, and their time zone. Set where Sluice is started, not by
# editors of actions.
SLUICE_LOCAL_ZONE = local_zone(env.str("SLUICE_TIME_ZONE", default=""))
SLUICE_ACTION_FOLDERS = env.list("SLUICE_ACTION_FOLDERS", default=[str(SLUICE_HOME / "log")])
SLUICE_WEBHOOK_HOSTS = env.list("SLUICE_WEBHOOK_HOSTS", default=[])
SLUICE_APPROVE_KINDS = env.list("SLUICE_APPROVE_KINDS", default=[])  # of archive, compress, remove, pipeline
SLUICE_DECISION_RETENTION_DAYS = env.int("SLUICE_DECISION_RETENTION_DAYS", default=30)
SLUICE_MINUTE_RETENTION_DAYS = env.int("SLUICE_MINUTE_RETENTION_DAYS", default=14)
SLUICE_HOUR_RETENTION_DAYS = env.int("SLUICE_HOUR_RETENTION_DAYS", default=92)
# Days that audit events are retained, by action or prefix of it; "*" is for all others, 0 means forever.
SLUICE_AUDIT_RETENTION_DAYS = {
    key: int(days)
    for key, days in {
        "*": 1_095,
        "login": 365,
        "logout": 90,
        "logon": 30,
        "api": 365,
        "page": 365,
        **env.dict("SLUICE_AUDIT_RETENTION_DAYS", default={}),
    }.items()
}

# Destinations of audit events: udp://HOST:PORT or tcp://HOST:PORT (syslog, RFC 5424), and an http(s) URL.
SLUICE_AUDIT_SYSLOG = env.str("SLUICE_AUDIT_SYSLOG", default="")
SLUICE_AUDIT_WEBHOOK = env.str("SLUICE_AUDIT_WEBHOOK", default="")

# --- Django -------------------------------------------------------------------------------------------------
SECRET_KEY = env.str("SLUICE_SECRET_KEY", default="") or secret_key(SLUICE_HOME)
DEBUG = env.bool("SLUICE_DEBUG", default=False)
ALLOWED_HOSTS = env.list("SLUICE_ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("SLUICE_TRUSTED_ORIGINS", default=[])
ROOT_URLCONF = "console.project.urls"
ASGI_APPLICATION = "console.project.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False
APPEND_SLASH = True

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "axes",
    "django_otp",
    "django_otp.plugins.otp_totp",
    "csp",
    "console",
    "api",
]

MIDDLEWARE = [
    "console.web.client_address.ClientAddressMiddleware",
    "console.web.middleware.RequestIdMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "console.web.middleware.NoStoreMiddleware",
    "console.web.middleware.AuditMiddleware",
    "console.web.login_gate.LoginGateMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "console.web.middleware.InstanceMiddleware",
    "console.web.middleware.SessionUseMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.http.ConditionalGetMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "console.views.common.permissions_context",
                "console.views.common.preferences_context",
                "console.views.pending_changes.pending_context",
            ],
        },
    },
]

# --- Database: SQLite in WAL mode unless DATABASE_URL names another
# -------------------------------------------
if env.str("DATABASE_URL", default=""):
    DATABASES: dict[str, dict[str, Any]] = {"default": env.db("DATABASE_URL")}
    DATABASES["default"]["CONN_MAX_AGE"] = 60
    DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
    if DATABASES["default"]["ENGINE"] == "django.db.backends.postgresql":
        # A network that drops all packets reports no error: without these limits each request would wait
        # for minutes, or forever.
        DATABASES["default"]["OPTIONS"] = {
            "connect_timeout": 5,  # s
            "tcp_user_timeout": 10_000,  # ms without an acknowledgement of sent data
            # Probes of a connection that waits for an answer: seconds until the first, seconds between
            # them, number.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 2,
        } | DATABASES["default"].get("OPTIONS", {})
else:
    DATABASES = {
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(SLUICE_HOME / "sluice.sqlite3")}
    }
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    SLUICE_RESERVED_DIRECTORIES += (Path(DATABASES["default"]["NAME"]),)
    DATABASES["default"] |= {
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            "timeout": 20,
            # A deferred transaction that reads and then writes fails immediately if another process wrote
            # in between (SQLITE_BUSY ignores the time-out there). IMMEDIATE takes the write lock first, and
            # waits for it.
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON;",
        },
    }

# --- Mail: only for alerts; none is sent without SLUICE_SMTP_URL
# ----------------------------------------------
# smtp://user:password@host:25, smtp+tls://… or smtp+ssl://…
SLUICE_SMTP_URL = env.str("SLUICE_SMTP_URL", default="")
if SLUICE_SMTP_URL:
    vars().update(env.email_url("SLUICE_SMTP_URL"))
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = env.str("SLUICE_MAIL_FROM", default="sluice@localhost")

# --- Redis: Celery's broker and the channel layer -----------------------------------------------------------
REDIS_URL = env.str("REDIS_URL", default="") or f"unix://{SLUICE_RUN_DIRECTORY / 'redis.sock'}"
CHANNEL_LAYERS = {
    "default": {
        # PubSub instead of the default layer: redis-py 8 sets socket_timeout=5, at which the default
        # layer's blocking pop raises, so that every idle WebSocket dies after 5 s. The pub/sub layer has no
        # blocking read with a time-out.
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [{"address": REDIS_URL, "socket_timeout": None}], "prefix": "sluice"},
    }
}
CELERY_BROKER_URL = celery_broker_url(REDIS_URL)
CELERY_TASK_IGNORE_RESULT = True  # the ActionRun row is the result
# A worker that is killed leaves the message in the queue. Claiming the run makes a repetition harmless.
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# Another worker gets the message after this time: the next one to look, which each does every 100 s. A longer
# run's message is delivered again too, without effect. The longest wait before a retry must be shorter.
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 180}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TIMEZONE = "UTC"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BEAT_SCHEDULE_FILENAME = str(SLUICE_HOME / "run" / "celerybeat-schedule")
CELERY_BEAT_SCHEDULE = {
    "tick": {
        "task": "console.tasks.run_minute_jobs",
        "schedule": 60.0,
        "options": {"expires": 55, "queue": CHORES_QUEUE},
    },
    "watch": {
        "task": "console.tasks.evaluate_alerts",
        "schedule": 10.0,
        "options": {"expires": 9, "queue": CHORES_QUEUE},
    },
    "send_alerts": {"task": "console.tasks.send_alerts", "schedule": 10.0, "options": {"expires": 9}},
    **{
        f"pulse {queue}": {
            "task": "console.tasks.pulse",
            "schedule": 10.0,
            "args": [queue],
            "options": {"expires": 60, "queue": queue},
        }
        for queue in queues_known(SLUICE_BROKERS)
    },
}
# A worker without the option -Q serves both queues; `make up` starts one worker for each.
CELERY_TASK_QUEUES = (Queue(USUAL_QUEUE), Queue(CHORES_QUEUE))
CELERY_TASK_DEFAULT_QUEUE = USUAL_QUEUE

# --- Access -------------------------------------------------------------------------------------------------
BEHIND_PROXY = env.bool("SLUICE_HTTPS", default=False)  # a proxy that provides TLS and sets X-Forwarded-Proto
HTTPS = BEHIND_PROXY or SLUICE_WEB_TLS is not None
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "console.web.login_gate.PasswordBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
# Whether every account must have an authenticator app. Otherwise each person decides.
SLUICE_REQUIRE_TOTP = env.bool("SLUICE_REQUIRE_TOTP", default=False)
OTP_TOTP_ISSUER = f"Sluice {SLUICE_INSTANCE}"
# OpenID provider for logins; empty for none.
SLUICE_OIDC_ISSUER = env.str("SLUICE_OIDC_ISSUER", default="")
SLUICE_OIDC_CLIENT_ID = env.str("SLUICE_OIDC_CLIENT_ID", default="")
SLUICE_OIDC_CLIENT_SECRET = env.str("SLUICE_OIDC_CLIENT_SECRET", default="")
SLUICE_OIDC_NAME_CLAIM = env.str("SLUICE_OIDC_NAME_CLAIM", default="preferred_username")
SLUICE_OIDC_LABEL = env.str("SLUICE_OIDC_LABEL", default="the identity provider")
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "login"
SESSION_ENGINE = "console.web.session_store"
SESSION_COOKIE_AGE = env.int("SLUICE_SESSION_HOURS", default=12) * 3600  # from the login, whether used or not
# Minutes without activity after which a session ends; 0 for never.
SLUICE_SESSION_IDLE_MINUTES = env.int("SLUICE_SESSION_IDLE_MINUTES", default=60)
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = HTTPS
CSRF_COOKIE_SECURE = HTTPS
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_FAILURE_VIEW = "api.error_handlers.csrf_failed"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if BEHIND_PROXY else None
X_FRAME_OPTIONS = "DENY"
AXES_FAILURE_LIMIT = 8
AXES_COOLOFF_TIME = 0.25  # hours
# A refused attempt does not prolong the lock: otherwise an operator who retries, or anyone at the same
# address who tries once in 15 minutes, would keep the name locked forever.
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_VERBOSE = False
AXES_CLIENT_IP_CALLABLE = "console.web.client_address.address_of"
AXES_DISABLE_ACCESS_LOG = True  # the audit records logins
AXES_LOCKOUT_CALLABLE = "console.web.lockout.locked_out_response"

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "font-src": ["'self'"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
}

# --- REST ---------------------------------------------------------------------------------------------------
# Bodies stay in memory: the web server refuses larger ones before Django gets them (api/bounded_http.py).
DATA_UPLOAD_MAX_MEMORY_SIZE = FILE_UPLOAD_MAX_MEMORY_SIZE = 4 * 1024 * 1024
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "api.auth.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["api.permissions.DeclaredPermission"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["api.parsers.BoundedJSONParser"],
    "DEFAULT_PAGINATION_CLASS": "api.pagination.NumberedPagination",
    "DEFAULT_SCHEMA_CLASS": "api.openapi.ContractSchema",
    "DEFAULT_THROTTLE_CLASSES": ["rest_framework.throttling.UserRateThrottle"],
    "DEFAULT_THROTTLE_RATES": {"user": env.str("SLUICE_API_RATE", default="6000/min")},
    "NUM_PROXIES": 0,  # only console/web/client_address.py reads X-Forwarded-For
    "EXCEPTION_HANDLER": "api.problems.exception_handler",
    "DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.NamespaceVersioning",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Sluice",
    "DESCRIPTION": "The control plane of Sluice: policies, clients, journals, runs and decisions.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "OAS_VERSION": "3.1.1",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "api.openapi.allow_null_in_any",
    ],
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "ENUM_NAME_OVERRIDES": {"DeliveryEnum": [one.value for one in DeliveryState]},
}

# --- Static files: whitenoise serves them from the apps, so that `collectstatic` isn't needed
# -----------------
STATIC_URL = "/static/"
STATIC_ROOT = SLUICE_HOME / "static"
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "broker_core.safe_text.EscapingFormatter",
            "format": "{asctime} {levelname:<7} {name}: {message}",
            "style": "{",
        }
    },
    "filters": {"refusals": {"()": "console.web.log_filters.RefusalFilter"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["refusals"]}},
    "root": {"handlers": ["console"], "level": os.environ.get("SLUICE_LOG_LEVEL", "INFO")},
    "loggers": {
        "django.server": {"handlers": ["console"], "level": "WARNING", "propagate": False},
        "daphne": {"level": "WARNING"},
        "axes": {"level": "WARNING"},
    },
}

"""What the server knows while it runs: documents' sites, settings, results, jobs, and what the client can do."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls import uris

from contracts.errors import ConfigError
from hiera_lsp.jobs import Jobs, Site
from hiera_lsp.results import Result, Results, Standing, made
from hiera_lsp.settings import Settings
from hiera_lsp.sites import EditorSite, SiteFinder
from hiera_lsp.written import Written

if TYPE_CHECKING:  # The engine is loaded when the first job asks for it, not before the editor has its answer.
    from engine.trajectory import Job, ModelOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """What the client can do; every optional answer asks here first."""

    markdown: bool = True
    disabled_actions: bool = False
    resolve_edit: bool = False
    resolve_command: bool = False
    annotations: bool = False
    create_files: bool = False
    versioned_edits: bool = False
    edit_metadata: bool = False
    llm_tags: bool = False
    progress: bool = False
    apply_edit: bool = False
    related_information: bool = False
    code_description: bool = False
    lens_refresh: bool = False
    inlay_refresh: bool = False
    configuration: bool = False
    change_configuration: bool = False
    show_document: bool = False
    lenses: bool = False
    watched_files: bool = False
    status: bool = False
    client_commands: tuple[str, ...] = ()

    @classmethod
    def from_capabilities(cls, capabilities: types.ClientCapabilities) -> Client:
        """Read the capabilities once."""
        document, workspace, window = capabilities.text_document, capabilities.workspace, capabilities.window
        action = document.code_action if document else None
        resolve = action.resolve_support.properties if action and action.resolve_support else ()
        hover = document.hover if document else None
        formats = list(hover.content_format or ()) if hover else []
        edit = workspace.workspace_edit if workspace else None
        publish = document.publish_diagnostics if document else None
        experimental: Any = capabilities.experimental or {}
        commands = experimental.get("commands", {}) if isinstance(experimental, Mapping) else {}
        return cls(
            markdown=not formats or formats[0] == types.MarkupKind.Markdown,
            disabled_actions=bool(action and action.disabled_support),
            resolve_edit="edit" in resolve,
            resolve_command="command" in resolve,
            llm_tags=bool(
                action and action.tag_support and types.CodeActionTag.LlmGenerated in action.tag_support.value_set
            ),
            annotations=bool(edit and edit.change_annotation_support),
            create_files=bool(edit and types.ResourceOperationKind.Create in (edit.resource_operations or ())),
            # Who can create files can only be told so by document changes, also where it does not say so (Neovim).
            versioned_edits=bool(edit and (edit.document_changes or edit.resource_operations)),
            edit_metadata=bool(edit and edit.metadata_support),
            progress=bool(window and window.work_done_progress),
            apply_edit=bool(workspace and workspace.apply_edit),
            related_information=bool(publish and publish.related_information),
            code_description=bool(publish and publish.code_description_support),
            lens_refresh=bool(workspace and workspace.code_lens and workspace.code_lens.refresh_support),
            inlay_refresh=bool(workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support),
            configuration=bool(workspace and workspace.configuration),
            change_configuration=bool(
                workspace and workspace.did_change_configuration
                and workspace.did_change_configuration.dynamic_registration
            ),
            show_document=bool(window and window.show_document),
            lenses=bool(document and document.code_lens),
            watched_files=bool(
                workspace and workspace.did_change_watched_files
                and workspace.did_change_watched_files.dynamic_registration
            ),
            status=isinstance(experimental, Mapping) and experimental.get("serverStatusNotification") is True,
            client_commands=_words(commands.get("commands")) if isinstance(commands, Mapping) else (),
        )


def _words(value: Any) -> tuple[str, ...]:
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


@dataclass(slots=True, kw_only=True)
class Session:
    """State of one server. Handlers read it; jobs and notifications change it.

    Attributes:
        trusted: False refuses to run anything of the user's.
        options: The `hiera` section that the client gave last without being asked.
        settings: Per path of a workspace folder or of a project in one; the empty key holds where none fits.
        sections: What the editor gave for each of them.
        projects: Those that are no workspace folders.
        warned: Setting warnings already shown.
        pulls: Questions for settings that the client has not answered yet.
    """

    client: Client = field(default_factory=Client)
    trusted: bool = True
    finder: SiteFinder = field(default_factory=SiteFinder)
    results: Results = field(default_factory=Results)
    written: Written = field(default_factory=Written)
    jobs: Jobs = field(default_factory=lambda: Jobs(os.environ))
    settings: dict[str, Settings] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)
    projects: set[str] = field(default_factory=set)
    options: Any = None
    warned: set[str] = field(default_factory=set)
    secrets: dict[str, str] = field(default_factory=dict)
    pulls: set[asyncio.Future[None]] = field(default_factory=set)

    def folder_of(self, uri: str) -> str:
        """The workspace folder or project a document belongs to: the deepest that holds it, or the empty key."""
        path = uris.to_fs_path(uri) or ""
        inside = [folder for folder in self.settings if folder and Path(path).is_relative_to(folder)]
        return max(inside, key=len, default="")

    def settings_of(self, uri: str) -> Settings:
        """The settings that hold for a document."""
        return self.settings.get(self.folder_of(uri)) or self.settings.get("") or Settings()

    def job_for(self, site: EditorSite, uri: str, preset: str | None, *, confirm: bool = True) -> Job:
        """The engine's job for a site, from the settings."""
        from engine.llm.endpoint import DEFAULT_KEY
        from engine.settings import with_model
        from engine.trajectory import Job

        settings = self.settings_of(uri)
        # The usual variable is left to the engine, which sends its key only where it belongs.
        own = settings.llm_key_variable in self.secrets or settings.llm_key_variable != DEFAULT_KEY
        job = Job(
            file=uris.to_fs_path(uri) or uri,
            name=site.symbol,
            preset=preset or settings.preset,
            # A preset asked for by name says how large the search is; the settings' own number counts else.
            budget=settings.budget or None if preset in (None, settings.preset) else None,
            seconds=float(settings.limit_s) if settings.limit_s else None,
            tokens=settings.tokens or None,
            space=settings.space or None,  # type: ignore[arg-type] - checked by the settings.
            agent=settings.agent,
            precision=settings.precision,  # type: ignore[arg-type]
            device=settings.device,
            python=settings.interpreter or settings.suggested_interpreter,
            confirm=confirm,
            llm=replace(self._model_options(uri), name=settings.llm_model, base_url=settings.llm_base_url,
                        key_variable=settings.llm_key_variable if own else ""),
        )
        return with_model(job, os.environ)

    def _model_options(self, uri: str) -> ModelOptions:
        """What the project's own files say about a model beyond the editor's settings; bad ones were warned about."""
        from engine.settings import with_settings
        from engine.trajectory import Job, ModelOptions

        with contextlib.suppress(ConfigError):
            return with_settings(Job(file=""), Path(uris.to_fs_path(uri) or uri).parent, {}).llm
        return ModelOptions()

    def standing(self, result: Result, sites: tuple[EditorSite, ...]) -> Standing:
        """How a result stands to the document's text as it is now."""
        site = next((s for s in sites if s.symbol == result.symbol), None)
        return result.standing(site.text_hash if site is not None else None)

    def live_result(self, uri: str, symbol: str) -> Result | None:
        """The site's result unless the user discarded it."""
        result = self.results.at(Site(uri, symbol))
        return None if result is None or result.state == "discarded" else result

    def interim_result(self, uri: str, symbol: str) -> Result | None:
        """What the site's job at work has found so far, when there is no finished result to show instead."""
        running = self.jobs.at(Site(uri, symbol))
        if running is None or running.summary is None or self.live_result(uri, symbol) is not None:
            return None
        return made(running.site, running.text_hash, running.summary)


def results_folder() -> Path:
    """Where results are kept over restarts."""
    from engine.store import cache_root

    return cache_root() / "editor"

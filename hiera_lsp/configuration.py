"""Where settings come from: initialization options, the client's configuration, and the project's own files."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls import uris
from pygls.exceptions import JsonRpcException

from hiera_lsp.session import Session
from hiera_lsp.settings import nearest_project, project_settings, read_settings

if TYPE_CHECKING:
    from hiera_lsp.server import HieraServer

SECTION = "hiera"
# A client that does not tell its settings in this time is not waited for.
ANSWER_S = 1.0
logger = logging.getLogger(__name__)


def begin(server: HieraServer, session: Session, params: types.InitializeParams) -> None:
    """Take the initialization options; `trusted: false` refuses to run anything of the user's."""
    options: Any = params.initialization_options or {}
    if not isinstance(options, dict):
        options = {}
    session.trusted = options.get("trusted") is not False
    section = options.get("settings", {key: value for key, value in options.items() if key != "trusted"})
    session.options = section
    folders = [folder.uri for folder in params.workspace_folders or ()]
    if not folders and params.root_uri:
        folders = [params.root_uri]
    _apply(server, session, "", section)
    for uri in folders:
        _apply(server, session, uris.to_fs_path(uri) or "", section)


async def pull(server: HieraServer, session: Session) -> None:
    """Ask the client for the section of every folder; where it cannot tell, read the project's files again."""
    done = asyncio.get_running_loop().create_future()
    session.pulls.add(done)
    try:
        await _pull(server, session)
    finally:
        session.pulls.discard(done)
        done.set_result(None)


def opened(server: HieraServer, session: Session, uri: str) -> None:
    """A project inside of a folder, or one that no folder holds, has settings of its own, as on the command line."""
    path = uris.to_fs_path(uri) if uri.startswith("file:") else None
    folder = session.folder_of(uri)
    project = nearest_project(Path(path), Path(folder) if folder else None) if path else None
    if project is not None and str(project) != folder and str(project) not in session.settings:
        session.projects.add(str(project))
        _apply(server, session, str(project), session.sections.get(folder, session.options))


async def settled(session: Session) -> None:
    """Wait until settings that are under way are there, so that a job gets those that its user sees."""
    if session.pulls:
        await asyncio.wait(session.pulls, timeout=ANSWER_S)


async def _pull(server: HieraServer, session: Session) -> None:
    folders = list(server.workspace.folders.values())
    paths = ["", *(uris.to_fs_path(folder.uri) or "" for folder in folders)]
    session.projects -= set(paths)
    for left in set(session.settings) - set(paths) - session.projects:
        del session.settings[left]
    if not session.client.configuration:
        for path in [*paths, *session.projects]:
            _apply(server, session, path, session.options)
        return
    items = [types.ConfigurationItem(section=SECTION)]
    items += [types.ConfigurationItem(scope_uri=folder.uri, section=SECTION) for folder in folders]
    try:
        answers = await server.workspace_configuration_async(types.ConfigurationParams(items=items))
    except JsonRpcException as error:
        logger.warning("the client gives no configuration: %s", error)
        return
    if not isinstance(answers, (list, tuple)):
        return
    for path, answer in zip(paths, answers, strict=False):
        # A client that knows nothing of the section answers null; what it said at the start still holds.
        _apply(server, session, path, answer or session.options)
    for project in session.projects:
        above = max((path for path in paths if path and Path(project).is_relative_to(path)), key=len, default="")
        _apply(server, session, project, session.sections.get(above, session.options))


def watch(server: HieraServer, session: Session) -> None:
    """Ask to be told of changes, where the client takes registrations; a refusal is no error."""
    registrations = []
    if session.client.change_configuration:
        registrations.append(
            types.Registration(
                id="hiera-configuration", method=types.WORKSPACE_DID_CHANGE_CONFIGURATION,
                register_options=types.DidChangeConfigurationRegistrationOptions(section=SECTION),
            )
        )
    if session.client.watched_files:
        watchers = [types.FileSystemWatcher(glob_pattern=f"**/{name}") for name in ("pyproject.toml", "hiera.toml")]
        registrations.append(
            types.Registration(
                id="hiera-files", method=types.WORKSPACE_DID_CHANGE_WATCHED_FILES,
                register_options=types.DidChangeWatchedFilesRegistrationOptions(watchers=watchers),
            )
        )
    if registrations:
        server.client_register_capability(types.RegistrationParams(registrations=registrations))


async def changed(server: HieraServer, session: Session, params: types.DidChangeConfigurationParams) -> None:
    """Take new settings: pushed with the notification, or pulled where the client only says that they changed."""
    settings: Any = params.settings
    if isinstance(settings, dict) and isinstance(settings.get(SECTION), dict):
        session.options = settings[SECTION]
        for folder in list(session.settings) or [""]:
            _apply(server, session, folder, settings[SECTION])
    else:
        await pull(server, session)


def _apply(server: HieraServer, session: Session, folder: str, section: Any) -> None:
    before = session.settings.get(folder)
    session.sections[folder] = section
    base, warnings = project_settings(Path(folder)) if folder else (None, ())
    session.settings[folder], more = read_settings(section, base)
    for warning in (*warnings, *more):
        if warning not in session.warned:
            session.warned.add(warning)
            server.window_show_message(types.ShowMessageParams(type=types.MessageType.Warning, message=warning))
    if before not in (None, session.settings[folder]):
        server.publisher.settings_changed()

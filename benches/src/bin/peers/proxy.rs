//! Brings each proxy into a case.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use weir_benches::program::{Kind, LOAD_CORE, PROXY_CORE, Programs, Running, free_port};
use weir_benches::tls::Pair;

use crate::case::Case;
use crate::config;

/// Starts a proxy on its core.
pub(crate) fn start(
    kind: Kind,
    programs: &Programs,
    case: &Case,
    application: SocketAddr,
) -> Result<Running> {
    let directory = tempfile::Builder::new()
        .prefix("weir-peer-")
        .tempdir()
        .context("no temporary directory can be made")?;
    let path = directory.path().to_path_buf();
    let pair = case.tls.map(|tls| Pair::make(&path, tls.key)).transpose()?;
    let pair = pair.as_ref();
    match kind {
        Kind::Weir => {
            std::fs::create_dir(path.join("state"))?;
            if case.bans > 0 || case.refuse {
                std::fs::write(path.join("state/bans.json"), config::bans_json(case))?;
            }
            let settings = config::weir(&path, application, case, pair);
            let cores: &[usize] = match case.two_workers {
                true => &[PROXY_CORE, LOAD_CORE],
                false => &[PROXY_CORE],
            };
            Running::weir_on(cores, programs, settings, directory)
        }
        Kind::Nginx => {
            let port = free_port()?;
            let file = path.join("nginx.conf");
            let text = config::nginx_proxy(&path, port, application, case, pair);
            std::fs::write(&file, text)?;
            let mut command = programs.pinned(PROXY_CORE, programs.of(kind)?)?;
            command.arg("-c").arg(&file).arg("-p").arg(&path);
            Running::start(command, port, &path, Some(directory))
        }
        Kind::Haproxy => {
            let port = free_port()?;
            let file = path.join("haproxy.cfg");
            std::fs::write(path.join("denied.lst"), config::denied_list(case))?;
            let text = config::haproxy(&path, port, application, case, pair);
            std::fs::write(&file, text)?;
            let mut command = programs.pinned(PROXY_CORE, programs.of(kind)?)?;
            command.arg("-db").arg("-f").arg(&file);
            Running::start(command, port, &path, Some(directory))
        }
    }
    .with_context(|| format!("{} for the case {}", kind.name(), case.name))
}

//! Health of a process and the small HTTP server that shows it: `/livez`, `/readyz`, `/metrics`.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::{Check, Validate};
use crate::metrics;

/// `health` in `ditto.yaml`: where a process serves its health. Off unless a port is given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct HealthConfig {
    /// Port; none: no server. 0: any free one.
    pub port: Option<u16>,
    /// Address to listen on; loopback unless set.
    pub host: IpAddr,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self { port: None, host: IpAddr::V4(Ipv4Addr::LOCALHOST) }
    }
}

impl Validate for HealthConfig {
    fn validate(&self, _: &mut Check<'_>) {}
}

impl HealthConfig {
    /// The address to serve on, if any.
    pub fn address(&self) -> Option<SocketAddr> {
        self.port.map(|port| SocketAddr::new(self.host, port))
    }
}

/// Shared health of one process; clones show and change the same state.
///
/// Ready: every part that was named is up, and the process is not stopping. Alive: no part has failed for good.
#[derive(Debug, Clone, Default)]
pub struct Health {
    state: Arc<RwLock<HealthState>>,
}

#[derive(Debug, Default)]
struct HealthState {
    parts: BTreeMap<&'static str, Part>,
    stopping: bool,
    failed: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Up,
    Down(String),
}

impl Health {
    /// Health without any part: ready at once. Name the parts before serving.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part that is down until its handle says otherwise, as in `ledger`, `bus`, `session`.
    pub fn part(&self, name: &'static str) -> HealthPart {
        self.write(|state| state.parts.entry(name).or_insert_with(|| Part::Down("starting".into())).clone());
        HealthPart { health: self.clone(), name }
    }

    /// From now on not ready: the process takes no more work.
    pub fn stopping(&self) {
        self.write(|state| state.stopping = true);
    }

    /// From now on not alive: only a restart helps. `reason` is shown, so it must hold no secret.
    pub fn failed(&self, reason: impl Into<String>) {
        self.write(|state| state.failed = Some(reason.into()));
    }

    /// Whether work should be sent here.
    pub fn is_ready(&self) -> bool {
        self.read(|state| {
            !state.stopping && state.failed.is_none() && state.parts.values().all(|part| *part == Part::Up)
        })
    }

    /// Whether the process should be left running.
    pub fn is_alive(&self) -> bool {
        self.read(|state| state.failed.is_none())
    }

    /// What `/readyz` shows.
    pub fn report(&self) -> serde_json::Value {
        let ready = self.is_ready();
        self.read(|state| {
            let parts: serde_json::Map<String, serde_json::Value> = state
                .parts
                .iter()
                .map(|(name, part)| match part {
                    Part::Up => ((*name).to_owned(), serde_json::json!({ "up": true })),
                    Part::Down(reason) => ((*name).to_owned(), serde_json::json!({ "up": false, "reason": reason })),
                })
                .collect();
            serde_json::json!({ "ready": ready, "stopping": state.stopping, "failed": state.failed, "parts": parts })
        })
    }

    fn read<T>(&self, look: impl FnOnce(&HealthState) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut HealthState) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Says how one part is doing.
#[derive(Debug, Clone)]
pub struct HealthPart {
    health: Health,
    name: &'static str,
}

impl HealthPart {
    /// The part works.
    pub fn up(&self) {
        self.set(Part::Up);
    }

    /// The part does not work now. `reason` is shown, so it must hold no secret.
    pub fn down(&self, reason: impl Into<String>) {
        self.set(Part::Down(reason.into()));
    }

    fn set(&self, part: Part) {
        self.health.write(|state| state.parts.insert(self.name, part));
    }
}

/// The three routes, to serve alone or to merge into a larger router.
pub fn router(health: Health) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/metrics", get(prometheus))
        .with_state(health)
}

/// Binds and returns the address in use together with the server, which runs while it is awaited and ends on `stop`.
///
/// # Errors
/// The address is taken or not allowed. The server itself ends with an error only if the system fails it.
pub async fn serve(
    address: SocketAddr,
    health: Health,
    stop: CancellationToken,
) -> io::Result<(SocketAddr, impl Future<Output = io::Result<()>> + Send + use<>)> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let server = axum::serve(listener, router(health)).with_graceful_shutdown(stop.cancelled_owned());
    Ok((bound, async move { server.await }))
}

async fn live(State(health): State<Health>) -> Response {
    answer(health.is_alive(), &health)
}

async fn ready(State(health): State<Health>) -> Response {
    answer(health.is_ready(), &health)
}

fn answer(well: bool, health: &Health) -> Response {
    let status = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, axum::Json(health.report())).into_response()
}

async fn prometheus() -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics::render()).into_response()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn fetch(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn a_process_is_ready_when_all_its_parts_are_and_alive_until_it_failed() {
        let health = Health::new();
        let (ledger, bus) = (health.part("ledger"), health.part("bus"));
        let stop = CancellationToken::new();
        let (address, server) = serve("127.0.0.1:0".parse().unwrap(), health.clone(), stop.clone()).await.unwrap();
        let server = tokio::spawn(server);

        assert!(fetch(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        assert!(fetch(address, "/livez").await.starts_with("HTTP/1.1 200"));
        ledger.up();
        bus.down("connection refused");
        let text = fetch(address, "/readyz").await;
        assert!(text.starts_with("HTTP/1.1 503") && text.contains("connection refused"), "{text}");
        bus.up();
        assert!(fetch(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        metrics::install("health-test");
        assert!(fetch(address, "/metrics").await.contains("target_info"));
        health.stopping();
        assert!(!health.is_ready() && health.is_alive());
        health.failed("lost its session");
        assert!(fetch(address, "/livez").await.starts_with("HTTP/1.1 503"));

        stop.cancel();
        server.await.unwrap().unwrap();
    }

    #[test]
    fn health_is_off_unless_a_port_is_given_and_then_on_loopback() {
        assert_eq!(HealthConfig::default().address(), None);
        let config = HealthConfig { port: Some(9090), ..HealthConfig::default() };
        assert_eq!(config.address(), Some("127.0.0.1:9090".parse().unwrap()));
    }
}

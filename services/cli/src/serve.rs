//! Serves the API: binds, guards a loopback address against other sites' pages, stops in bounded time.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::exit::Failure;

/// How long open answers may go on after the stop: event streams never end by themselves.
const DRAIN: Duration = Duration::from_secs(2);

/// A bound address that is not served yet.
pub(crate) struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

/// Takes the address.
///
/// # Errors
/// It is taken, or not allowed.
pub(crate) async fn bind(address: SocketAddr) -> Result<Bound, Failure> {
    let failed = |error: std::io::Error| {
        Failure::unreachable(format!("cannot listen on {address}: {}", reason(&error)))
            .code("ADDRESS")
            .hint("another process may serve there; choose another with --listen, as in --listen 127.0.0.1:0")
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(Bound { listener, address })
}

fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "the address is in use".into(),
        kind => kind.to_string(),
    }
}

impl Bound {
    /// The address in use.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until told to stop.
    pub(crate) async fn serve(self, router: Router, stop: CancellationToken) -> Result<(), Failure> {
        let router =
            if self.address.ip().is_loopback() { router.layer(middleware::from_fn(local_hosts_only)) } else { router };
        let server = axum::serve(self.listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            served = async { server.await } => served.map_err(|error| Failure::internal(format!("the API failed: {error}"))),
            () = late => Ok(()),
        }
    }
}

/// A page of another site can reach a loopback address through a name of its own. Such a request carries that name.
async fn local_hosts_only(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    if host.is_some_and(is_local) {
        return next.run(request).await;
    }
    let body = serde_json::json!({
        "type": "about:blank",
        "title": "Forbidden",
        "status": 403,
        "code": "HOST_NOT_LOCAL",
        "detail": "Host: this server listens on a loopback address and answers to localhost only",
        "retryable": false,
    });
    (StatusCode::FORBIDDEN, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}

fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_names_of_this_machine_are_local() {
        for host in ["localhost", "LOCALHOST:7878", "127.0.0.1:7878", "127.0.0.1", "[::1]:7878", "[::1]"] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:7878",
            "localhost.evil.example",
            "10.0.0.1",
            "[fe80::1]:1",
            "",
            "127.0.0.1.evil",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }
}

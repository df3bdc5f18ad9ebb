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
    let Some((code, detail)) = refusal(&request) else { return next.run(request).await };
    let body = serde_json::json!({
        "type": "about:blank",
        "title": "Forbidden",
        "status": 403,
        "code": code,
        "detail": detail,
        "retryable": false,
    });
    (StatusCode::FORBIDDEN, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}

/// Why a request at a loopback address is refused.
fn refusal(request: &Request) -> Option<(&'static str, &'static str)> {
    let text = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    let hosts = request.headers().get_all(header::HOST);
    let local = hosts.iter().count() == 1 && hosts.iter().all(|host| host.to_str().is_ok_and(is_local));
    // Absolute form names a host as well.
    if !local || !request.uri().host().is_none_or(is_local) {
        let detail = "Host: this server listens on a loopback address and answers to localhost only";
        return Some(("HOST_NOT_LOCAL", detail));
    }
    // A browser says where a request comes from; a page of another site may send one without reading the answer.
    let own_site = text("sec-fetch-site").is_none_or(|site| matches!(site, "same-origin" | "none"));
    let own_origin =
        text("origin").is_none_or(|origin| origin.split_once("://").is_some_and(|(_, host)| is_local(host)));
    if own_site && own_origin {
        return None;
    }
    Some(("CROSS_SITE", "Origin: this server listens on a loopback address and takes nothing from other sites' pages"))
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
    use axum::{Router, body::Body, http::Request, middleware, routing::post};
    use tower::ServiceExt as _;

    use super::{is_local, local_hosts_only};

    #[tokio::test]
    async fn nothing_is_taken_from_pages_of_other_sites() {
        let app = Router::new().route("/", post(|| async { "ok" })).layer(middleware::from_fn(local_hosts_only));
        let table: &[(&[(&str, &str)], u16)] = &[
            (&[("host", "127.0.0.1:7878")], 200),
            (&[("host", "localhost"), ("origin", "http://localhost:3000"), ("sec-fetch-site", "same-origin")], 200),
            (&[("host", "127.0.0.1"), ("origin", "http://evil.example")], 403),
            (&[("host", "127.0.0.1"), ("origin", "null")], 403),
            (&[("host", "127.0.0.1"), ("sec-fetch-site", "cross-site")], 403),
            (&[("host", "127.0.0.1"), ("host", "evil.example")], 403),
            (&[("host", "evil.example")], 403),
            (&[], 403),
        ];
        for (headers, status) in table {
            let mut request = Request::post("/");
            for (name, value) in *headers {
                request = request.header(*name, *value);
            }
            let answer = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            assert_eq!(answer.status().as_u16(), *status, "{headers:?}");
        }
        let absolute = Request::post("http://evil.example/").header("host", "127.0.0.1").body(Body::empty()).unwrap();
        assert_eq!(app.oneshot(absolute).await.unwrap().status().as_u16(), 403);
    }

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

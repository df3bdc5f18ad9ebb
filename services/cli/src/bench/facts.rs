//! Facts that belong beside every figure: machine, versions, durability.

use std::{collections::BTreeMap, fs, io::Write as _, path::Path, time::Instant};

use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpStream,
};

use super::{http, stat::percentile};
use crate::exit::Failure;

/// How often the disk is asked.
const SYNCS: usize = 200;

/// Where it was measured.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Machine {
    /// Processors that this process may use.
    pub(crate) cores: usize,
    /// What they are.
    pub(crate) processor: String,
    /// Kernel.
    pub(crate) kernel: String,
    /// Memory, in MiB.
    pub(crate) memory_mib: u64,
    /// Where ledgers and streams are.
    pub(crate) dir: String,
    /// Its file system.
    pub(crate) filesystem: String,
    /// Appending 4 KiB and `fdatasync`, median, in microseconds.
    pub(crate) fdatasync_p50_us: u64,
    /// The same, 99th percentile.
    pub(crate) fdatasync_p99_us: u64,
}

/// Looks at the machine; takes a fraction of a second.
pub(super) fn machine(dir: &Path) -> Result<Machine, Failure> {
    let failed = |error: std::io::Error| Failure::internal(format!("{}: {error}", dir.display()));
    let path = dir.join("fdatasync");
    let mut file = fs::File::create(&path).map_err(failed)?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let start = Instant::now();
        file.write_all(&[0x5a; 4096]).and_then(|()| file.sync_data()).map_err(failed)?;
        times.push(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    fs::remove_file(&path).map_err(failed)?;
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let after = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_owned())
    };
    let memory = after(&read("/proc/meminfo"), "MemTotal");
    Ok(Machine {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        processor: after(&read("/proc/cpuinfo"), "model name"),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        memory_mib: memory.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024,
        dir: dir.parent().unwrap_or(dir).display().to_string(),
        filesystem: filesystem(&read("/proc/mounts"), dir),
        fdatasync_p50_us: percentile(&mut times, 0.5),
        fdatasync_p99_us: percentile(&mut times, 0.99),
    })
}

/// The type of the file system that a folder is on: the longest mount point above it.
fn filesystem(mounts: &str, dir: &Path) -> String {
    let mut best = (0, "unknown");
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        if let (Some(point), Some(kind)) = (words.next(), words.next())
            && dir.starts_with(point)
            && point.len() >= best.0
        {
            best = (point.len(), kind);
        }
    }
    best.1.to_owned()
}

/// What a NATS server says of itself: its version, and how its streams reach the disk.
pub(super) async fn nats(url: &str, monitoring: Option<&str>) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    // As the coordinator creates its streams.
    facts.insert("jetstream.storage".to_owned(), "file".to_owned());
    if let Some(version) = version(url).await {
        facts.insert("nats.version".into(), version);
    }
    let interval = match monitoring.and_then(http::address_of) {
        Some(address) => http::get_whole(&address, "/varz").await.ok().and_then(|body| sync_interval(&body)),
        None => None,
    };
    facts.insert(
        "jetstream.sync_interval".into(),
        interval.unwrap_or_else(|| "not known (see its configuration)".into()),
    );
    facts
}

async fn version(url: &str) -> Option<String> {
    let address = url.strip_prefix("nats://").unwrap_or(url);
    let address = address.rsplit_once('@').map_or(address, |(_, host)| host);
    let mut stream = BufReader::new(TcpStream::connect(address).await.ok()?);
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    let info: serde_json::Value = serde_json::from_str(line.strip_prefix("INFO ")?).ok()?;
    Some(info["version"].as_str()?.to_owned())
}

fn sync_interval(varz: &str) -> Option<String> {
    let varz: serde_json::Value = serde_json::from_str(varz).ok()?;
    let config = &varz["jetstream"]["config"];
    if config["sync_always"].as_bool() == Some(true) {
        return Some("always".into());
    }
    let ns = config["sync_interval"].as_u64()?;
    Some(format!("{}s", ns / 1_000_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_is_that_of_the_nearest_mount() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmpx xfs rw 0 0\n";
        assert_eq!(filesystem(mounts, Path::new("/tmp/a")), "tmpfs");
        assert_eq!(filesystem(mounts, Path::new("/var/a")), "ext4");
    }

    #[test]
    fn the_interval_is_read_from_the_server() {
        let varz = r#"{"jetstream":{"config":{"sync_interval":120000000000}}}"#;
        assert_eq!(sync_interval(varz).as_deref(), Some("120s"));
        let varz = r#"{"jetstream":{"config":{"sync_interval":1,"sync_always":true}}}"#;
        assert_eq!(sync_interval(varz).as_deref(), Some("always"));
    }
}

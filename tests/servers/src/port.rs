//! Free TCP ports that stay free while their server is down.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

/// Ports this process has given out: never given twice, so a server that is down keeps its own.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port on 127.0.0.1 that the kernel lets a listener bind now and that it will not give to an outgoing connection.
///
/// The second half matters to tests that restart servers: were the port in the ephemeral range, a client that redials
/// it could be given the very port as its own source, and would be connected to itself.
///
/// # Errors
/// When 200 candidates in a row are taken.
pub fn free() -> Result<u16> {
    let range = outside_the_ephemeral_range();
    let width = u64::from(range.end - range.start);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut seed = u64::from(std::process::id()) << 32
        ^ SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    for _ in 0..200 {
        // A step of splitmix64: test processes that start together must not try the same ports in the same order.
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let offset = u16::try_from((mixed ^ (mixed >> 31)) % width).context("a port range is at most 65535 wide")?;
        let port = range.start + offset;
        if !given.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            given.insert(port);
            return Ok(port);
        }
    }
    bail!("no free port on 127.0.0.1 in {}..{}", range.start, range.end);
}

fn outside_the_ephemeral_range() -> Range<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = text.split_whitespace().filter_map(|word| word.parse::<u16>().ok());
    match (bounds.next(), bounds.next()) {
        (Some(low), _) if low > 12_000 => 10_000..low,
        (Some(_), Some(high)) if high < 63_000 => high + 1..65_500,
        (Some(_), Some(_)) => 10_000..65_500,
        // Not Linux: the range set aside for ephemeral ports by IANA starts at 49152.
        _ => 10_000..49_152,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let ports: BTreeSet<u16> = (0..20).map(|_| free().unwrap()).collect();
        assert_eq!(ports.len(), 20);
        TcpListener::bind((Ipv4Addr::LOCALHOST, *ports.first().unwrap())).unwrap();
    }
}

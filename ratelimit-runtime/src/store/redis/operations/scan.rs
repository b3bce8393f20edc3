//! Looks for the keys of a limit, server by server.

use redis::{Cmd, Value};

use super::script_call::unexpected;
use crate::reply::StoreError;
use crate::store::ScanPosition;
use crate::store::redis::{Redis, Topology};

/// The number of keys that a command looks at.
const LOOKED_AT: u32 = 1_000;

impl Redis {
    /// Returns some names of counts that begin with `start`, and where to go on.
    pub(crate) async fn scan_from(
        &self,
        start: &[u8],
        position: ScanPosition,
    ) -> Result<(Vec<Vec<u8>>, Option<ScanPosition>), StoreError> {
        let ScanPosition { server, cursor } = position;
        let mut scan = Cmd::new();
        scan.arg("SCAN").arg(cursor).arg("MATCH").arg(pattern(start)).arg("COUNT").arg(LOOKED_AT);
        let servers = &self.servers;
        let (by, _) = servers.admit(false)?;
        let (reply, is_last) = match &servers.topology {
            Topology::One(node) => (node.send(&scan, false, by).await, true),
            Topology::Cluster(cluster) => {
                let nodes = cluster
                    .primaries(by)
                    .await
                    .map_err(|failure| failure.into_store_error(servers.deadline, &[]))?;
                let Some(node) = nodes.get(server) else { return Ok((Vec::new(), None)) };
                (node.send(&scan, false, by).await, server + 1 == nodes.len())
            }
        };
        let reply = reply.map_err(|failure| failure.into_store_error(servers.deadline, &[]))?;
        let (cursor, names) = decode(reply).ok_or_else(unexpected)?;
        let next = match cursor {
            0 if is_last => None,
            0 => Some(ScanPosition { server: server + 1, cursor: 0 }),
            cursor => Some(ScanPosition { server, cursor }),
        };
        Ok((names, next))
    }
}

/// Returns the pattern of the names that begin with `start`.
fn pattern(start: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(start.len() + 1);
    for byte in start {
        if b"*?[]\\^".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern.push(b'*');
    pattern
}

fn decode(reply: Value) -> Option<(u64, Vec<Vec<u8>>)> {
    let Value::Array(parts) = reply else { return None };
    let [Value::BulkString(cursor), Value::Array(names)] = &parts[..] else { return None };
    let cursor = std::str::from_utf8(cursor).ok()?.parse().ok()?;
    let name = |value: &Value| match value {
        Value::BulkString(name) => Some(name.clone()),
        _ => None,
    };
    Some((cursor, names.iter().filter_map(name).collect()))
}

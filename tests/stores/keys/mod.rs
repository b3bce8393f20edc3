//! The keys that a store holds: their names, bytes, memory, TTL and eviction.

mod embedded;
mod evictions;
mod hashed;
mod long_keys;
mod prefixes;
mod redis_keys;
mod ttl;

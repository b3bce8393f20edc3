//! Models that a checker runs in every order of their steps. Their transitions are the code: the files of the runtime
//! that this crate includes, and the scripts of `lua/`, which run in Lua without a server.

#![allow(dead_code, unused_imports, unused_macros, reason = "the models use a part of the files")]

#[path = "../../ratelimit-runtime/src/algorithm/mod.rs"]
mod algorithm;
#[path = "../../ratelimit-runtime/src/backend/mod.rs"]
mod backend;
#[path = "../../ratelimit-runtime/src/background/mod.rs"]
mod background;
#[path = "../../ratelimit-runtime/src/check/mod.rs"]
mod check;
#[path = "../../ratelimit-runtime/src/clock/mod.rs"]
mod clock;
#[path = "../../ratelimit-runtime/src/key/mod.rs"]
mod key;
#[path = "../../ratelimit-runtime/src/lease/mod.rs"]
mod lease;
#[path = "../../ratelimit-runtime/src/limit/mod.rs"]
mod limit;
#[path = "../../ratelimit-runtime/src/local/mod.rs"]
mod local;
#[path = "../../ratelimit-runtime/src/one_or_many.rs"]
mod one_or_many;
#[path = "../../ratelimit-runtime/src/owner/mod.rs"]
mod owner;
#[path = "../../ratelimit-runtime/src/printing.rs"]
mod printing;
#[path = "../../ratelimit-runtime/src/store/redis/scripts/program.rs"]
mod program;
#[path = "../../ratelimit-runtime/src/registry/mod.rs"]
mod registry;
#[path = "../../ratelimit-runtime/src/reply/mod.rs"]
mod reply;
#[path = "../../ratelimit-runtime/src/report/mod.rs"]
mod report;
#[path = "../../ratelimit-runtime/src/rules/mod.rs"]
mod rules;
#[path = "../../ratelimit-runtime/src/store/mod.rs"]
mod store;
#[path = "../../ratelimit-runtime/src/text/mod.rs"]
mod text;
#[path = "../../ratelimit-runtime/src/threads.rs"]
mod threads;
#[path = "../../ratelimit-runtime/src/waiting/mod.rs"]
mod waiting;

pub mod bounds;
mod judge;
mod scripts;
mod server;

pub use self::lease::model as leases;
pub use self::owner::models::{corrections, slots};
pub use self::waiting::model as lines;

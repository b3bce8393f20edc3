//! Rules that override limits at run time: what they change, and where a limiter reads them.

mod feeds;
mod in_force;
mod pairs;
mod stuck_feeds;

//! `once` and `within`.

use ratelimit_runtime::{VirtualClock, rate_limit};
use support::clocks::embedded_on;
use support::limits::{MINUTE, SECOND};

limited! {
    (period = "1m", threshold = 2, key = tenant, once = request_id)
        async fn order(tenant: &str, request_id: u64) -> Option<()> { Some(()) }
    // Each tenant has the same ids.
    ("2/minute", key = "{tenant}", once = "{request_id}:{part}", within = "2h", scope = "process")
        fn part(tenant: u8, request_id: u64, part: u8) -> Option<()> { Some(()) }
}

#[tokio::test]
async fn a_call_with_a_known_id_takes_nothing() {
    let clock = VirtualClock::new();
    let run = async {
        for (id, is_admitted) in [(1, true), (1, true), (2, true), (3, false), (2, true), (1, true)]
        {
            assert_eq!(order("acme", id).await.is_some(), is_admitted, "{id}");
        }
        assert!(order("other", 3).await.is_some());
        // They are forgotten, and charged again.
        clock.advance(MINUTE);
        assert!(order("acme", 1).await.is_some() && order("acme", 2).await.is_some());
        assert!(order("acme", 3).await.is_none());
    };
    embedded_on(&clock).scope(run).await;
}

#[tokio::test]
async fn an_id_is_remembered_for_longer_than_the_period() {
    let clock = VirtualClock::new();
    let run = async {
        assert!(part(1, 7, 1).is_some() && part(1, 7, 2).is_some() && part(1, 8, 1).is_none());
        assert!(part(1, 7, 1).is_some() && part(2, 7, 1).is_some());
        clock.advance(7_199 * SECOND);
        assert!(part(1, 8, 1).is_some() && part(1, 8, 2).is_some() && part(1, 9, 1).is_none());
        assert!(part(1, 7, 1).is_some());
        clock.advance(SECOND);
        assert!(part(1, 7, 1).is_none());
    };
    embedded_on(&clock).scope(run).await;
}

#[test]
fn the_limit_that_remembers_agrees_with_the_other() {
    #[rate_limit(period = "1m", threshold = 1, once = id, on_error = "deny", shadow = true)]
    async fn shadow(id: u8) -> Option<()> {
        Some(())
    }
    assert!((0..3).all(|id| support::poll_once(shadow(id)).is_some()));
}

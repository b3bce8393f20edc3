#[rate_limit(period = 60, threshold = 100_000, key = team, cost = estimate, settle = |result| used(result))]
async fn complete(team: &str, estimate: u64, _: Prompt) -> Result<Answer, Rejection> {
    ask(team).await
}

#[rate_limit(period = 60, threshold = 100, permit = tokens)]
async fn stream() -> Result<Stream, Rejection> {
    Ok(open(tokens))
}

#[rate_limit(
    limit(limit = REQUESTS),
    limit(period = 60, threshold = 100_000, cost = 10, settle = Answer::tokens),
    limit(period = 60, threshold = 5),
    key = team,
    count_if = Answer::is_wrong,
    scope = "process"
)]
fn several(team: &str) -> Answer {
    ask(team)
}

#[rate_limit(period = 60, threshold = 100, block = retry_after)]
async fn blocked() -> Answer {
    ask().await
}

#[rate_limit(
    period = 60, threshold = 100, count_if = Answer::is_wrong, block = retry_after, block_at_most = "10m"
)]
async fn blocked_and_counted() -> Answer {
    ask().await
}

#[rate_limit(period = 60, threshold = 100, permit = tokens, block = retry_after)]
async fn blocked_by_result_and_settled_by_hand() -> Answer {
    ask(tokens).await
}

#[rate_limit(in_flight = 2, scope = "process")]
async fn held(mut prompt: Prompt, (team, _): (Team, u64), text: &str) -> Option<Answer> {
    ask(prompt, team, text).await
}

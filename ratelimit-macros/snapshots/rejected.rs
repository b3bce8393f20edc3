#[rate_limit(period = 1, threshold = 10)]
async fn hidden(mut name: String) -> impl IntoResponse {
    name.push('!');
    name
}

#[rate_limit(period = 1, threshold = 10, on_limited = |rejection| rejection.to_string())]
async fn text() -> String {
    String::new()
}

#[rate_limit(period = 1, threshold = 10, on_limited = busy)]
async fn hidden_text() -> impl IntoResponse {
    String::new()
}

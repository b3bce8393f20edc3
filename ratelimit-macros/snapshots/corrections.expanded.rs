async fn complete(
    team: &str,
    estimate: u64,
    __rate_limit_parameter_2: Prompt,
) -> Result<Answer, Rejection> {
    let __rate_limit_permit_0;
    [__rate_limit_permit_0] = {
        let __rate_limit_pending = match (
            ::ratelimit_runtime::__private::key(&team),
            ::ratelimit_runtime::__private::cost(estimate),
        ) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::acquire(
                    &::ratelimit_runtime::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::sliding(
                                                ::core::concat!(::core::module_path!(), "::", "complete"),
                                                100_000,
                                                ::ratelimit_runtime::__private::micros(60000000u64),
                                            )
                                        })
                                },
                                &__rate_limit_key_1,
                                __rate_limit_cost_1,
                            ),
                        ],
                    ),
                )
            }
        };
        match __rate_limit_pending.await {
            ::core::result::Result::Ok(__rate_limit_permits) => __rate_limit_permits,
            ::core::result::Result::Err(__rate_limit_rejection) => {
                return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
            }
        }
    };
    let __rate_limit_output = async move {
        if let ::core::option::Option::Some(__rate_limit_returned) = ::core::option::Option::None::<
            Result<Answer, Rejection>,
        > {
            return __rate_limit_returned;
        }
        {
            let _ = &__rate_limit_parameter_2;
            let _ = &estimate;
            let _ = &team;
            {
                let () = ();
                ask(team).await
            }
        }
    }
        .await;
    ::ratelimit_runtime::__private::settle(
        __rate_limit_permit_0,
        &__rate_limit_output,
        |result| used(result),
    );
    __rate_limit_output
}
async fn stream() -> Result<Stream, Rejection> {
    let tokens;
    [tokens] = {
        let __rate_limit_pending = match ((), 1_u64) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::acquire(
                    &::ratelimit_runtime::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::sliding(
                                                ::core::concat!(::core::module_path!(), "::", "stream"),
                                                100,
                                                ::ratelimit_runtime::__private::micros(60000000u64),
                                            )
                                        })
                                },
                                &__rate_limit_key_1,
                                __rate_limit_cost_1,
                            ),
                        ],
                    ),
                )
            }
        };
        match __rate_limit_pending.await {
            ::core::result::Result::Ok(__rate_limit_permits) => __rate_limit_permits,
            ::core::result::Result::Err(__rate_limit_rejection) => {
                return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
            }
        }
    };
    {
        {
            let () = ();
            Ok(open(tokens))
        }
    }
}
fn several(team: &str) -> Answer {
    let __rate_limit_permit_0;
    let __rate_limit_permit_1;
    let __rate_limit_permit_2;
    [__rate_limit_permit_0, __rate_limit_permit_1, __rate_limit_permit_2] = {
        let __rate_limit_pending = match (
            ::ratelimit_runtime::__private::key(&team),
            1_u64,
            ::ratelimit_runtime::__private::cost(10),
        ) {
            (__rate_limit_key, __rate_limit_cost, __rate_limit_cost_2) => {
                const {
                    ::ratelimit_runtime::__private::decided_together(
                        &[
                            &::ratelimit_runtime::Limit::scope(
                                ::ratelimit_runtime::__private::limit(REQUESTS),
                                ::ratelimit_runtime::Scope::Process,
                            ),
                            &::ratelimit_runtime::Limit::scope(
                                ::ratelimit_runtime::Limit::sliding(
                                    "limit",
                                    100_000,
                                    ::ratelimit_runtime::__private::micros(60000000u64),
                                ),
                                ::ratelimit_runtime::Scope::Process,
                            ),
                            &::ratelimit_runtime::Limit::scope(
                                ::ratelimit_runtime::Limit::sliding(
                                    "limit",
                                    5,
                                    ::ratelimit_runtime::__private::micros(60000000u64),
                                ),
                                ::ratelimit_runtime::Scope::Process,
                            ),
                        ],
                    )
                };
                let _ = (&__rate_limit_key, &__rate_limit_cost);
                ::ratelimit_runtime::__private::acquire_blocking(
                    &::ratelimit_runtime::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Constant,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::scope(
                                                ::ratelimit_runtime::__private::unleased(REQUESTS),
                                                ::ratelimit_runtime::Scope::Process,
                                            )
                                        })
                                },
                                &__rate_limit_key,
                                __rate_limit_cost,
                            ),
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::scope(
                                                ::ratelimit_runtime::Limit::sliding(
                                                    ::core::concat!(
                                                        ::core::concat!(::core::module_path!(), "::", "several"),
                                                        "#2"
                                                    ),
                                                    100_000,
                                                    ::ratelimit_runtime::__private::micros(60000000u64),
                                                ),
                                                ::ratelimit_runtime::Scope::Process,
                                            )
                                        })
                                },
                                &__rate_limit_key,
                                __rate_limit_cost_2,
                            ),
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::scope(
                                                ::ratelimit_runtime::Limit::sliding(
                                                    ::core::concat!(
                                                        ::core::concat!(::core::module_path!(), "::", "several"),
                                                        "#3"
                                                    ),
                                                    5,
                                                    ::ratelimit_runtime::__private::micros(60000000u64),
                                                ),
                                                ::ratelimit_runtime::Scope::Process,
                                            )
                                        })
                                },
                                &__rate_limit_key,
                                __rate_limit_cost,
                            ),
                        ],
                    ),
                )
            }
        };
        match __rate_limit_pending {
            ::core::result::Result::Ok(__rate_limit_permits) => __rate_limit_permits,
            ::core::result::Result::Err(__rate_limit_rejection) => {
                return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
            }
        }
    };
    let __rate_limit_output = ::ratelimit_runtime::__private::call_once(move || -> Answer {
        {
            let _ = &team;
            {
                let () = ();
                ask(team)
            }
        }
    });
    ::ratelimit_runtime::__private::count_if(
        __rate_limit_permit_0,
        &__rate_limit_output,
        Answer::is_wrong,
    );
    ::ratelimit_runtime::__private::settle(
        __rate_limit_permit_1,
        &__rate_limit_output,
        Answer::tokens,
    );
    ::ratelimit_runtime::__private::count_if(
        __rate_limit_permit_2,
        &__rate_limit_output,
        Answer::is_wrong,
    );
    __rate_limit_output
}
async fn blocked() -> Answer {
    let __rate_limit_permit_0;
    [__rate_limit_permit_0] = {
        let __rate_limit_pending = match ((), 1_u64) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::acquire(
                    &::ratelimit_runtime::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::sliding(
                                                ::core::concat!(::core::module_path!(), "::", "blocked"),
                                                100,
                                                ::ratelimit_runtime::__private::micros(60000000u64),
                                            )
                                        })
                                },
                                &__rate_limit_key_1,
                                __rate_limit_cost_1,
                            ),
                        ],
                    ),
                )
            }
        };
        match __rate_limit_pending.await {
            ::core::result::Result::Ok(__rate_limit_permits) => __rate_limit_permits,
            ::core::result::Result::Err(__rate_limit_rejection) => {
                return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
            }
        }
    };
    let __rate_limit_output = async move {
        if let ::core::option::Option::Some(__rate_limit_returned) = ::core::option::Option::None::<
            Answer,
        > {
            return __rate_limit_returned;
        }
        {
            {
                let () = ();
                ask().await
            }
        }
    }
        .await;
    ::ratelimit_runtime::Permit::keep(
        ::ratelimit_runtime::__private::block(
            __rate_limit_permit_0,
            ::ratelimit_runtime::__private::BLOCK_AT_MOST,
            &__rate_limit_output,
            retry_after,
        ),
    );
    __rate_limit_output
}
async fn blocked_and_counted() -> Answer {
    let __rate_limit_permit_0;
    [__rate_limit_permit_0] = {
        let __rate_limit_pending = match ((), 1_u64) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::acquire(
                    &::ratelimit_runtime::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::sliding(
                                                ::core::concat!(
                                                    ::core::module_path!(), "::", "blocked_and_counted"
                                                ),
                                                100,
                                                ::ratelimit_runtime::__private::micros(60000000u64),
                                            )
                                        })
                                },
                                &__rate_limit_key_1,
                                __rate_limit_cost_1,
                            ),
                        ],
                    ),
                )
            }
        };
        match __rate_limit_pending.await {
            ::core::result::Result::Ok(__rate_limit_permits) => __rate_limit_permits,
            ::core::result::Result::Err(__rate_limit_rejection) => {
                return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
            }
        }
    };
    let __rate_limit_output = async move {
        if let ::core::option::Option::Some(__rate_limit_returned) = ::core::option::Option::None::<
            Answer,
        > {
            return __rate_limit_returned;
        }
        {
            {
                let () = ();
                ask().await
            }
        }
    }
        .await;
    ::ratelimit_runtime::__private::count_if(
        ::ratelimit_runtime::__private::block(
            __rate_limit_permit_0,
            ::ratelimit_runtime::__private::micros(600000000u64),
            &__rate_limit_output,
            retry_after,
        ),
        &__rate_limit_output,
        Answer::is_wrong,
    );
    __rate_limit_output
}
async fn blocked_by_result_and_settled_by_hand() -> Answer {
    let __rate_limit_permit_0;
    [__rate_limit_permit_0] = {
        let __rate_limit_pending = match ((), 1_u64) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::acquire(
                    &::ratelimit_runtime::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::sliding(
                                                ::core::concat!(
                                                    ::core::module_path!(), "::",
                                                    "blocked_by_result_and_settled_by_hand"
                                                ),
                                                100,
                                                ::ratelimit_runtime::__private::micros(60000000u64),
                                            )
                                        })
                                },
                                &__rate_limit_key_1,
                                __rate_limit_cost_1,
                            ),
                        ],
                    ),
                )
            }
        };
        match __rate_limit_pending.await {
            ::core::result::Result::Ok(__rate_limit_permits) => __rate_limit_permits,
            ::core::result::Result::Err(__rate_limit_rejection) => {
                return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
            }
        }
    };
    let (tokens, __rate_limit_permit_0) = ::ratelimit_runtime::__private::split_for_block(
        __rate_limit_permit_0,
    );
    let __rate_limit_output = async move {
        if let ::core::option::Option::Some(__rate_limit_returned) = ::core::option::Option::None::<
            Answer,
        > {
            return __rate_limit_returned;
        }
        {
            {
                let () = ();
                ask(tokens).await
            }
        }
    }
        .await;
    ::ratelimit_runtime::Permit::keep(
        ::ratelimit_runtime::__private::block(
            __rate_limit_permit_0,
            ::ratelimit_runtime::__private::BLOCK_AT_MOST,
            &__rate_limit_output,
            retry_after,
        ),
    );
    __rate_limit_output
}
async fn held(
    prompt: Prompt,
    __rate_limit_parameter_1: (Team, u64),
    text: &str,
) -> Option<Answer> {
    let __rate_limit_permit_0;
    let mut prompt = prompt;
    let __rate_limit_parameter_1 = __rate_limit_parameter_1;
    let (team, _) = __rate_limit_parameter_1;
    [__rate_limit_permit_0] = {
        let __rate_limit_pending = match ((), 1_u64) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::acquire(
                    &::ratelimit_runtime::__private::AnnotatedCall::new(
                        ::core::option::Option::None,
                        [
                            (
                                &{
                                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                        ::ratelimit_runtime::__private::Site::new(
                                        ::core::concat!(
                                            ::core::file!(), ":", ::core::line!(), ":",
                                            ::core::column!()
                                        ),
                                        ::ratelimit_runtime::__private::SiteName::Default,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::scope(
                                                ::ratelimit_runtime::Limit::in_flight(
                                                    ::core::concat!(::core::module_path!(), "::", "held"),
                                                    2,
                                                ),
                                                ::ratelimit_runtime::Scope::Process,
                                            )
                                        })
                                },
                                &__rate_limit_key_1,
                                __rate_limit_cost_1,
                            ),
                        ],
                    ),
                )
            }
        };
        match __rate_limit_pending.await {
            ::core::result::Result::Ok(__rate_limit_permits) => __rate_limit_permits,
            ::core::result::Result::Err(__rate_limit_rejection) => {
                return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
            }
        }
    };
    {
        {
            let () = ();
            ask(prompt, team, text).await
        }
    }
}

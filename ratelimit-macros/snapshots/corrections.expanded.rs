async fn complete(
    team: &str,
    estimate: u32,
    _parameter_2: Prompt,
) -> Result<Answer, Rejection> {
    let permit_0;
    [permit_0] = {
        let pending = ::ratelimit_runtime::__private::acquire(
            match const {
                &::ratelimit_runtime::Limit::sliding(
                    ::core::concat!(::core::module_path!(), "::", "complete"),
                    100_000,
                    ::ratelimit_runtime::__private::micros(60000000u64),
                )
            } {
                limit => {
                    static SITE: ::ratelimit_runtime::__private::Site = ::ratelimit_runtime::__private::Site::new(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                    );
                    SITE.visit(limit)
                }
            },
            &team,
            estimate,
        );
        match pending.await {
            ::core::result::Result::Ok(permits) => permits,
            ::core::result::Result::Err(rejection) => {
                return ::ratelimit_runtime::__private::reject(rejection);
            }
        }
    };
    let output = async move {
        if let ::core::option::Option::Some(__ratelimit_returned) = ::core::option::Option::None::<
            Result<Answer, Rejection>,
        > {
            return __ratelimit_returned;
        }
        {
            let _ = &_parameter_2;
            let _ = &estimate;
            let _ = &team;
            {
                let () = ();
                ask(team).await
            }
        }
    }
        .await;
    ::ratelimit_runtime::__private::settle(permit_0, &output, |result| used(result));
    output
}
async fn stream() -> Result<Stream, Rejection> {
    let tokens;
    [tokens] = {
        let pending = ::ratelimit_runtime::__private::acquire(
            match const {
                &::ratelimit_runtime::Limit::sliding(
                    ::core::concat!(::core::module_path!(), "::", "stream"),
                    100,
                    ::ratelimit_runtime::__private::micros(60000000u64),
                )
            } {
                limit => {
                    static SITE: ::ratelimit_runtime::__private::Site = ::ratelimit_runtime::__private::Site::new(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                    );
                    SITE.visit(limit)
                }
            },
            (),
            1_u32,
        );
        match pending.await {
            ::core::result::Result::Ok(permits) => permits,
            ::core::result::Result::Err(rejection) => {
                return ::ratelimit_runtime::__private::reject(rejection);
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
    let permit_0;
    let permit_1;
    let permit_2;
    [permit_0, permit_1, permit_2] = {
        let pending = {
            const {
                ::ratelimit_runtime::__private::decided_together(
                    &[
                        const {
                            &::ratelimit_runtime::Limit::scope(
                                ::ratelimit_runtime::__private::limit(REQUESTS),
                                ::ratelimit_runtime::Scope::Process,
                            )
                        },
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
            match (
                ::ratelimit_runtime::__private::key(&team),
                1_u32,
                ::ratelimit_runtime::__private::cost(10),
            ) {
                (__ratelimit_key, __ratelimit_cost, __ratelimit_cost_2) => {
                    let _ = (&__ratelimit_key, __ratelimit_cost);
                    ::ratelimit_runtime::__private::acquire_all_now(
                        &::ratelimit_runtime::__private::LimitGroup::new([
                            ::ratelimit_runtime::__private::CallPart::constant(
                                match const {
                                    &::ratelimit_runtime::Limit::scope(
                                        ::ratelimit_runtime::__private::unleased(REQUESTS),
                                        ::ratelimit_runtime::Scope::Process,
                                    )
                                } {
                                    limit => {
                                        static SITE: ::ratelimit_runtime::__private::Site =
                                            ::ratelimit_runtime::__private::Site::constant(
                                            ::core::concat!(
                                                ::core::file!(), ":", ::core::line!(), ":",
                                                ::core::column!()
                                            ),
                                        );
                                        SITE.visit(limit)
                                    }
                                },
                                &__ratelimit_key,
                                __ratelimit_cost,
                            ),
                            ::ratelimit_runtime::__private::CallPart::constant(
                                match const {
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
                                } {
                                    limit => {
                                        static SITE: ::ratelimit_runtime::__private::Site =
                                            ::ratelimit_runtime::__private::Site::new(
                                            ::core::concat!(
                                                ::core::file!(), ":", ::core::line!(), ":",
                                                ::core::column!()
                                            ),
                                        );
                                        SITE.visit(limit)
                                    }
                                },
                                &__ratelimit_key,
                                __ratelimit_cost_2,
                            ),
                            ::ratelimit_runtime::__private::CallPart::constant(
                                match const {
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
                                } {
                                    limit => {
                                        static SITE: ::ratelimit_runtime::__private::Site =
                                            ::ratelimit_runtime::__private::Site::new(
                                            ::core::concat!(
                                                ::core::file!(), ":", ::core::line!(), ":",
                                                ::core::column!()
                                            ),
                                        );
                                        SITE.visit(limit)
                                    }
                                },
                                &__ratelimit_key,
                                __ratelimit_cost,
                            ),
                        ]),
                    )
                }
            }
        };
        match pending {
            ::core::result::Result::Ok(permits) => permits,
            ::core::result::Result::Err(rejection) => {
                return ::ratelimit_runtime::__private::reject(rejection);
            }
        }
    };
    let output = ::ratelimit_runtime::__private::call_once(move || -> Answer {
        {
            let _ = &team;
            {
                let () = ();
                ask(team)
            }
        }
    });
    ::ratelimit_runtime::__private::count_if(permit_0, &output, Answer::is_wrong);
    ::ratelimit_runtime::__private::settle(permit_1, &output, Answer::tokens);
    ::ratelimit_runtime::__private::count_if(permit_2, &output, Answer::is_wrong);
    output
}
async fn closed() -> Answer {
    let permit_0;
    [permit_0] = {
        let pending = ::ratelimit_runtime::__private::acquire(
            match const {
                &::ratelimit_runtime::Limit::sliding(
                    ::core::concat!(::core::module_path!(), "::", "closed"),
                    100,
                    ::ratelimit_runtime::__private::micros(60000000u64),
                )
            } {
                limit => {
                    static SITE: ::ratelimit_runtime::__private::Site = ::ratelimit_runtime::__private::Site::new(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                    );
                    SITE.visit(limit)
                }
            },
            (),
            1_u32,
        );
        match pending.await {
            ::core::result::Result::Ok(permits) => permits,
            ::core::result::Result::Err(rejection) => {
                return ::ratelimit_runtime::__private::reject(rejection);
            }
        }
    };
    let output = async move {
        if let ::core::option::Option::Some(__ratelimit_returned) = ::core::option::Option::None::<
            Answer,
        > {
            return __ratelimit_returned;
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
        ::ratelimit_runtime::__private::close(
            permit_0,
            ::ratelimit_runtime::__private::CLOSE_AT_MOST,
            &output,
            retry_after,
        ),
    );
    output
}
async fn closed_and_counted() -> Answer {
    let permit_0;
    [permit_0] = {
        let pending = ::ratelimit_runtime::__private::acquire(
            match const {
                &::ratelimit_runtime::Limit::sliding(
                    ::core::concat!(::core::module_path!(), "::", "closed_and_counted"),
                    100,
                    ::ratelimit_runtime::__private::micros(60000000u64),
                )
            } {
                limit => {
                    static SITE: ::ratelimit_runtime::__private::Site = ::ratelimit_runtime::__private::Site::new(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                    );
                    SITE.visit(limit)
                }
            },
            (),
            1_u32,
        );
        match pending.await {
            ::core::result::Result::Ok(permits) => permits,
            ::core::result::Result::Err(rejection) => {
                return ::ratelimit_runtime::__private::reject(rejection);
            }
        }
    };
    let output = async move {
        if let ::core::option::Option::Some(__ratelimit_returned) = ::core::option::Option::None::<
            Answer,
        > {
            return __ratelimit_returned;
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
        ::ratelimit_runtime::__private::close(
            permit_0,
            ::ratelimit_runtime::__private::micros(600000000u64),
            &output,
            retry_after,
        ),
        &output,
        Answer::is_wrong,
    );
    output
}
async fn closed_by_result_and_settled_by_hand() -> Answer {
    let permit_0;
    [permit_0] = {
        let pending = ::ratelimit_runtime::__private::acquire(
            match const {
                &::ratelimit_runtime::Limit::sliding(
                    ::core::concat!(
                        ::core::module_path!(), "::",
                        "closed_by_result_and_settled_by_hand"
                    ),
                    100,
                    ::ratelimit_runtime::__private::micros(60000000u64),
                )
            } {
                limit => {
                    static SITE: ::ratelimit_runtime::__private::Site = ::ratelimit_runtime::__private::Site::new(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                    );
                    SITE.visit(limit)
                }
            },
            (),
            1_u32,
        );
        match pending.await {
            ::core::result::Result::Ok(permits) => permits,
            ::core::result::Result::Err(rejection) => {
                return ::ratelimit_runtime::__private::reject(rejection);
            }
        }
    };
    let (tokens, permit_0) = ::ratelimit_runtime::__private::split_for_close(permit_0);
    let output = async move {
        if let ::core::option::Option::Some(__ratelimit_returned) = ::core::option::Option::None::<
            Answer,
        > {
            return __ratelimit_returned;
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
        ::ratelimit_runtime::__private::close(
            permit_0,
            ::ratelimit_runtime::__private::CLOSE_AT_MOST,
            &output,
            retry_after,
        ),
    );
    output
}

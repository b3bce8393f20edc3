async fn one(user: &str, plan: Plan) -> Result<(), Rejection> {
    'decided: {
        let pending = match ::ratelimit_runtime::__private::check(
            match (
                match const {
                    &::ratelimit_runtime::Limit::token_bucket(
                        ::core::concat!(::core::module_path!(), "::", "one"),
                        1_u32,
                        ::ratelimit_runtime::__private::micros(60000000u64),
                    )
                } {
                    limit => {
                        static SITE: ::ratelimit_runtime::__private::Site = ::ratelimit_runtime::__private::Site::new(
                                ::core::concat!(
                                    ::core::file!(), ":", ::core::line!(), ":",
                                    ::core::column!()
                                ),
                            )
                            .computed();
                        SITE.visit(limit)
                    }
                },
                ::ratelimit_runtime::__private::amount(plan.rate()),
                ::ratelimit_runtime::__private::amount(plan.burst),
                ::ratelimit_runtime::__private::Lease::UpTo(LEASE),
            ) {
                (limit, threshold, burst, lease) => {
                    static AMOUNTS: ::ratelimit_runtime::__private::AmountsSite =
                        ::ratelimit_runtime::__private::AmountsSite::new();
                    AMOUNTS.of(limit, threshold, burst, lease)
                }
            },
            &user,
            1_u32,
        ) {
            ::core::option::Option::Some(pending) => pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(rejection) = pending.await {
            return ::ratelimit_runtime::__private::reject(rejection);
        }
    }
    {
        let () = ();
        work().await
    }
}
fn several(user: &str, rate: Option<u32>) -> Answer {
    let permit_2;
    [_, _, permit_2] = {
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
                                const { 5 * 5 },
                                ::ratelimit_runtime::__private::micros(60000000u64),
                            ),
                            ::ratelimit_runtime::Scope::Process,
                        ),
                        &::ratelimit_runtime::Limit::scope(
                            ::ratelimit_runtime::Limit::sliding(
                                "limit",
                                1_u32,
                                ::ratelimit_runtime::__private::micros(60000000u64),
                            ),
                            ::ratelimit_runtime::Scope::Process,
                        ),
                    ],
                )
            };
            match (
                match (
                    match const {
                        &::ratelimit_runtime::Limit::scope(
                            ::ratelimit_runtime::Limit::sliding(
                                ::core::concat!(
                                    ::core::concat!(::core::module_path!(), "::", "several"),
                                    "#3"
                                ),
                                1_u32,
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
                                )
                                .computed();
                            SITE.visit(limit)
                        }
                    },
                    ::ratelimit_runtime::__private::amount(rate),
                    ::core::option::Option::None,
                    ::ratelimit_runtime::__private::Lease::None,
                ) {
                    (limit, threshold, burst, lease) => {
                        static AMOUNTS: ::ratelimit_runtime::__private::AmountsSite =
                            ::ratelimit_runtime::__private::AmountsSite::new();
                        AMOUNTS.of(limit, threshold, burst, lease)
                    }
                },
            ) {
                (limit_3,) => {
                    match (::ratelimit_runtime::__private::key(&user), 1_u32) {
                        (__ratelimit_key, __ratelimit_cost) => {
                            let _ = (&__ratelimit_key, __ratelimit_cost);
                            ::ratelimit_runtime::__private::acquire_all_now(
                                &::ratelimit_runtime::__private::LimitGroup::new([
                                    ::ratelimit_runtime::__private::CallPart::constant(
                                        match const {
                                            &::ratelimit_runtime::Limit::scope(
                                                ::ratelimit_runtime::__private::without_permit(REQUESTS),
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
                                                    const { 5 * 5 },
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
                                    ::ratelimit_runtime::__private::CallPart::of(
                                        &limit_3,
                                        &__ratelimit_key,
                                        __ratelimit_cost,
                                    ),
                                ]),
                            )
                        }
                    }
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
            let _ = &rate;
            let _ = &user;
            {
                let () = ();
                work()
            }
        }
    });
    ::ratelimit_runtime::__private::settle(permit_2, &output, tokens);
    output
}

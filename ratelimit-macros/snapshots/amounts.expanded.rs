async fn one(user: &str, plan: Plan) -> Result<(), Rejection> {
    'decided: {
        let __rate_limit_pending = match match (
            ::ratelimit_runtime::__private::CallLimit::with_amounts(
                {
                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                        ::ratelimit_runtime::__private::Site::new(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                        ::ratelimit_runtime::__private::SiteName::Default,
                        true,
                    );
                    __RATE_LIMIT_SITE
                        .visit(const {
                            &::ratelimit_runtime::Limit::token_bucket(
                                ::core::concat!(::core::module_path!(), "::", "one"),
                                1_u64,
                                ::ratelimit_runtime::__private::micros(60000000u64),
                            )
                        })
                },
                ::ratelimit_runtime::__private::amount(plan.rate()),
                ::ratelimit_runtime::__private::amount(plan.burst),
                ::ratelimit_runtime::__private::Lease::UpTo(LEASE),
            ),
        ) {
            (__rate_limit_limit_1,) => {
                match (::ratelimit_runtime::__private::key(&user), 1_u64) {
                    (__rate_limit_key_1, __rate_limit_cost_1) => {
                        ::ratelimit_runtime::__private::check(
                            &::ratelimit_runtime::__private::AnnotatedCall::new(
                                ::core::option::Option::None,
                                [
                                    (
                                        &__rate_limit_limit_1,
                                        &__rate_limit_key_1,
                                        __rate_limit_cost_1,
                                    ),
                                ],
                            ),
                        )
                    }
                }
            }
        } {
            ::core::option::Option::Some(__rate_limit_pending) => __rate_limit_pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_pending
            .await
        {
            return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
        }
    }
    {
        let () = ();
        work().await
    }
}
fn several(user: &str, rate: Option<u64>) -> Answer {
    let __rate_limit_permit_2;
    [_, _, __rate_limit_permit_2] = {
        let __rate_limit_pending = match (
            ::ratelimit_runtime::__private::CallLimit::with_amounts(
                {
                    static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                        ::ratelimit_runtime::__private::Site::new(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                        ::ratelimit_runtime::__private::SiteName::Chosen,
                        true,
                    );
                    __RATE_LIMIT_SITE
                        .visit(const {
                            &::ratelimit_runtime::Limit::scope(
                                ::ratelimit_runtime::Limit::sliding(
                                    ::core::concat!("pages", "#3"),
                                    1_u64,
                                    ::ratelimit_runtime::__private::micros(60000000u64),
                                ),
                                ::ratelimit_runtime::Scope::Process,
                            )
                        })
                },
                ::ratelimit_runtime::__private::amount(rate),
                ::core::option::Option::None,
                ::ratelimit_runtime::__private::Lease::None,
            ),
        ) {
            (__rate_limit_limit_3,) => {
                match (::ratelimit_runtime::__private::key(&user), 1_u64) {
                    (__rate_limit_key, __rate_limit_cost) => {
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
                                            const { 5 * 5 },
                                            ::ratelimit_runtime::__private::micros(60000000u64),
                                        ),
                                        ::ratelimit_runtime::Scope::Process,
                                    ),
                                    &::ratelimit_runtime::Limit::scope(
                                        ::ratelimit_runtime::Limit::sliding(
                                            "limit",
                                            1_u64,
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
                                                        ::ratelimit_runtime::__private::without_permit(REQUESTS),
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
                                                ::ratelimit_runtime::__private::SiteName::Chosen,
                                                false,
                                            );
                                            __RATE_LIMIT_SITE
                                                .visit(const {
                                                    &::ratelimit_runtime::Limit::scope(
                                                        ::ratelimit_runtime::Limit::sliding(
                                                            ::core::concat!("pages", "#2"),
                                                            const { 5 * 5 },
                                                            ::ratelimit_runtime::__private::micros(60000000u64),
                                                        ),
                                                        ::ratelimit_runtime::Scope::Process,
                                                    )
                                                })
                                        },
                                        &__rate_limit_key,
                                        __rate_limit_cost,
                                    ),
                                    (
                                        &__rate_limit_limit_3,
                                        &__rate_limit_key,
                                        __rate_limit_cost,
                                    ),
                                ],
                            ),
                        )
                    }
                }
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
            let _ = &rate;
            let _ = &user;
            {
                let () = ();
                work()
            }
        }
    });
    ::ratelimit_runtime::__private::settle(
        __rate_limit_permit_2,
        &__rate_limit_output,
        tokens,
    );
    __rate_limit_output
}

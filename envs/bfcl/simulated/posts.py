"""Short public posts: tweets, comments, retweets, and who follows whom."""

from __future__ import annotations

from typing import Any

from turntree.envs.bfcl.simulated.simulator import Simulator, found
from turntree.envs.errors import ToolError
from turntree.envs.tools.tool import tool

Post = dict[str, Any]


class Posts(Simulator):
    """One user's account. Writing needs a login, reading does not."""

    initial = {
        "username": "john",
        "password": "john123",
        "authenticated": False,
        "tweets": {},
        "comments": {},
        "retweets": {},
        "following_list": ["alice", "bob"],
        "tweet_counter": 1,
    }

    @tool
    def authenticate_twitter(self, username: str, password: str) -> dict[str, bool]:
        """Log in.

        Args:
            username: Name of the user
            password: Password of the user
        """
        right = (username, password) == (self.state["username"], self.state["password"])
        self.state["authenticated"] = self.state["authenticated"] or right
        return {"authentication_status": right}

    @tool
    def posting_get_login_status(self) -> dict[str, bool]:
        """Whether the user is logged in."""
        return {"login_status": bool(self.state["authenticated"])}

    @tool
    def post_tweet(self, content: str, tags: list[str] = [], mentions: list[str] = []) -> Post:  # noqa: B006 - read only
        """Post a tweet.

        Args:
            content: Its text
            tags: Each begins with #
            mentions: Users, each begins with @
        """
        self._check_login()
        number = self.state["tweet_counter"]
        post = {"id": number, "username": self.state["username"], "content": content}
        post |= {"tags": list(tags), "mentions": list(mentions)}
        self.state["tweets"][str(number)] = post
        self.state["tweet_counter"] += 1
        return post

    @tool
    def comment(self, tweet_id: int, comment_content: str) -> dict[str, str]:
        """Comment on a tweet.

        Args:
            tweet_id: Id of the tweet
            comment_content: Text of the comment
        """
        self._check_login()
        found(self.state["tweets"], tweet_id, "tweet")
        entry = {"username": self.state["username"], "content": comment_content}
        self.state["comments"].setdefault(str(tweet_id), []).append(entry)
        return {"comment_status": "the comment is added"}

    @tool
    def retweet(self, tweet_id: int) -> dict[str, str]:
        """Post a tweet again.

        Args:
            tweet_id: Id of the tweet
        """
        self._check_login()
        found(self.state["tweets"], tweet_id, "tweet")
        own = self.state["retweets"].setdefault(self.state["username"], [])
        if tweet_id in own:
            return {"retweet_status": "it was retweeted before"}
        own.append(tweet_id)
        return {"retweet_status": "it is retweeted"}

    @tool
    def mention(self, tweet_id: int, mentioned_usernames: list[str]) -> dict[str, str]:
        """Mention users in a tweet.

        Args:
            tweet_id: Id of the tweet
            mentioned_usernames: Their names
        """
        found(self.state["tweets"], tweet_id, "tweet")["mentions"].extend(mentioned_usernames)
        return {"mention_status": f"{len(mentioned_usernames)} users are mentioned"}

    @tool
    def follow_user(self, username_to_follow: str) -> dict[str, bool]:
        """Follow a user.

        Args:
            username_to_follow: Name of the user
        """
        self._check_login()
        if username_to_follow in self.state["following_list"]:
            return {"follow_status": False}
        self.state["following_list"].append(username_to_follow)
        return {"follow_status": True}

    @tool
    def unfollow_user(self, username_to_unfollow: str) -> dict[str, bool]:
        """Follow a user no longer.

        Args:
            username_to_unfollow: Name of the user
        """
        self._check_login()
        if username_to_unfollow not in self.state["following_list"]:
            return {"unfollow_status": False}
        self.state["following_list"].remove(username_to_unfollow)
        return {"unfollow_status": True}

    @tool
    def list_all_following(self) -> dict[str, list[str]]:
        """List the users who are followed."""
        self._check_login()
        return {"following_list": self.state["following_list"]}

    @tool
    def get_tweet(self, tweet_id: int) -> Post:
        """Show a tweet.

        Args:
            tweet_id: Id of the tweet
        """
        return dict(found(self.state["tweets"], tweet_id, "tweet"))

    @tool
    def get_user_tweets(self, username: str) -> dict[str, list[Post]]:
        """Show the tweets of a user.

        Args:
            username: Name of the user
        """
        return {"user_tweets": self._of(username)}

    @tool
    def search_tweets(self, keyword: str) -> dict[str, list[Post]]:
        """Find tweets by a word in their text or tags.

        Args:
            keyword: The word
        """
        word = keyword.lower()
        posts = self.state["tweets"].values()
        return {
            "matching_tweets": [post for post in posts if word in " ".join([post["content"], *post["tags"]]).lower()]
        }

    @tool
    def get_tweet_comments(self, tweet_id: int) -> dict[str, list[dict[str, str]]]:
        """Show the comments on a tweet.

        Args:
            tweet_id: Id of the tweet
        """
        found(self.state["tweets"], tweet_id, "tweet")
        return {"comments": self.state["comments"].get(str(tweet_id), [])}

    @tool
    def get_user_stats(self, username: str) -> dict[str, int]:
        """Count what a user posted, posted again and follows.

        Args:
            username: Name of the user
        """
        own = username == self.state["username"]
        return {
            "tweet_count": len(self._of(username)),
            "following_count": len(self.state["following_list"]) if own else 0,
            "retweet_count": len(self.state["retweets"].get(username, [])),
        }

    def _of(self, username: str) -> list[Post]:
        return [post for post in self.state["tweets"].values() if post["username"] == username]

    def _check_login(self) -> None:
        if not self.state["authenticated"]:
            raise ToolError("nobody is logged in")
